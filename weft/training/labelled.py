"""Labelled edges: pairs of vertices that a user's file names, what is to be predicted of them, and what they carry."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.convert import count_classes, to_labels
from weft.graph.edgelist import DST_NAMES, SRC_NAMES, EdgeColumns, number_vertices, read_edges
from weft.graph.ids import IdMap
from weft.graph.nodefile import read_node_file
from weft.graph.tables import PARQUET, TEXT, kind_of, open_table
from weft.graph.times import to_times
from weft.graph.vertexdata import SPLITS, Predicted, kind_of_labels
from weft.kernels.hash import hash_key, splitmix64
from weft.training.by_time import time_borders
from weft.training.settings import EdgeConfig

TIMES = ("edge_time", "time", "timestamp", "date")  # names of a column of times
_SPLIT = 0x65646765  # tells the draw of splits from others


@dataclass(frozen=True)
class LabelledEdges:
    """Edges in the order of their file, the same on every worker; they need not be edges of the graph."""

    heads: Tensor  # int64 [P], global ids
    tails: Tensor
    y: Tensor  # as the labels of vertices
    masks: dict[str, Tensor]  # bool [P], by split
    features: Tensor | None  # float32 [P, F]
    num_classes: int
    class_names: tuple[str, ...] | None
    times: Tensor | None = None  # float64 [P]

    @property
    def num_outputs(self) -> int:
        if not self.y.is_floating_point():
            return self.num_classes
        return 1 if self.y.dim() == 1 else self.y.shape[1]

    @property
    def num_features(self) -> int:
        return 0 if self.features is None else self.features.shape[1]

    @property
    def predicted(self) -> Predicted:
        return kind_of_labels(self.y.is_floating_point(), self.y.dim())

    def digest(self) -> str:
        """sha256 of all that is learned from."""
        found = hashlib.sha256()
        columns = (self.heads, self.tails, self.y, self.features, *(self.masks[split] for split in SPLITS))
        for column in columns if self.times is None else (*columns, self.times):
            found.update(b"-" if column is None else column.contiguous().numpy().tobytes())
        return found.hexdigest()


def read_labelled_edges(config: EdgeConfig, ids: IdMap, seed: int, timed: bool = False) -> LabelledEdges:
    """The edges of `edge.labels`; `ids` are the vertices' own. `timed`: each must have a time."""
    if config.labels is None:
        raise UserError("train.task=edges learns the labels of edges in a file: name it with edge.labels")
    path = Path(config.labels)
    if kind_of(path) not in (*TEXT, *PARQUET):
        raise UserError(f"{path} is no table of labelled edges that weft reads: give csv, tsv, txt or parquet")
    time = config.time_column or (find_time_column(path) if timed or config.hold_out == "time" else None)
    asked = EdgeColumns(config.source_column, config.destination_column, features=config.features, time=time)
    edges = read_edges(path, asked)
    heads, tails, _ = number_vertices(edges, ids, path)
    rows = read_node_file(path, "labels", label_columns=config.label_columns, split_column=config.split_column)
    assert rows.labels is not None and rows.num_rows == heads.size
    if config.label_kind == "numbers" and rows.labels.are_names:
        raise UserError(f"the labels of {path} are names, and numbers are to be predicted: give numbers")
    y = to_labels(rows.labels.y, config.label_kind)
    names = rows.labels.class_names
    masks = {split: torch.from_numpy(np.array(mask, np.bool_)) for split, mask in (rows.masks or {}).items()}
    if masks:
        masks = {split: masks.get(split, torch.zeros(heads.size, dtype=torch.bool)) for split in SPLITS}
    times = None if edges.time is None else to_times(edges.time, edges.src.size, "the times of labelled edges")
    return LabelledEdges(
        torch.from_numpy(heads).long(),
        torch.from_numpy(tails).long(),
        y,
        masks or _splits(heads.size, times, timed, config, seed),
        None if edges.features is None else torch.from_numpy(edges.features.astype(np.float32)),
        count_classes(y, None, names),
        names,
        times,
    )


def find_time_column(path: Path) -> str:
    """The column of a table of edges that says their times, by its name."""
    table = open_table(path, (*SRC_NAMES, *DST_NAMES, *TIMES))
    found = table.pick("time", None, TIMES)
    if found is None:
        raise UserError(
            f"{path} has no times of its edges, and they are wanted: those of the graph are heeded, or edges are "
            "held out by time: name their column with edge.time_column, or --set train.times=ignore"
        )
    return found


def _splits(count: int, times: Tensor | None, timed: bool, config: EdgeConfig, seed: int) -> dict[str, Tensor]:
    if config.hold_out == "random" or times is None or (config.hold_out == "auto" and not timed):
        return _drawn_splits(count, config, seed)
    if config.val + config.test >= 1.0:
        raise UserError(f"edge.val {config.val} and edge.test {config.test} leave no edge to train on")
    first, last = time_borders(times, config.val, config.test, Communicator.alone(), "labelled edges")
    return {"train": times <= first, "val": (times > first) & (times <= last), "test": times > last}


def _drawn_splits(count: int, config: EdgeConfig, seed: int) -> dict[str, Tensor]:
    """Each edge draws by its number in the file."""
    if config.val + config.test >= 1.0:
        raise UserError(f"edge.val {config.val} and edge.test {config.test} leave no edge to train on")
    bits = splitmix64(torch.arange(count) ^ hash_key(seed, _SPLIT))
    draw = ((bits >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
    val, test = draw < config.val, draw >= 1.0 - config.test
    return {"train": ~(val | test), "val": val, "test": test}
