"""Labelled edges: pairs of vertices that a user's file names, what is to be predicted of them, and what they carry."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.convert import count_classes, to_labels
from weft.graph.edgelist import EdgeColumns, number_vertices, read_edges
from weft.graph.ids import IdMap
from weft.graph.nodefile import read_node_file
from weft.graph.tables import PARQUET, TEXT, kind_of
from weft.graph.vertexdata import SPLITS, Predicted, kind_of_labels
from weft.kernels.hash import hash_key, splitmix64
from weft.training.settings import EdgeConfig

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
        for column in (self.heads, self.tails, self.y, self.features, *(self.masks[split] for split in SPLITS)):
            found.update(b"-" if column is None else column.contiguous().numpy().tobytes())
        return found.hexdigest()


def read_labelled_edges(config: EdgeConfig, ids: IdMap, seed: int) -> LabelledEdges:
    """The edges of `edge.labels`; `ids` are the vertices' own."""
    if config.labels is None:
        raise UserError("train.task=edges learns the labels of edges in a file: name it with edge.labels")
    path = Path(config.labels)
    if kind_of(path) not in (*TEXT, *PARQUET):
        raise UserError(f"{path} is no table of labelled edges that weft reads: give csv, tsv, txt or parquet")
    asked = EdgeColumns(config.source_column, config.destination_column, features=config.features)
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
    return LabelledEdges(
        torch.from_numpy(heads).long(),
        torch.from_numpy(tails).long(),
        y,
        masks or _drawn_splits(heads.size, config, seed),
        None if edges.features is None else torch.from_numpy(edges.features.astype(np.float32)),
        count_classes(y, None, names),
        names,
    )


def _drawn_splits(count: int, config: EdgeConfig, seed: int) -> dict[str, Tensor]:
    """Each edge draws by its number in the file."""
    if config.val + config.test >= 1.0:
        raise UserError(f"edge.val {config.val} and edge.test {config.test} leave no edge to train on")
    bits = splitmix64(torch.arange(count) ^ hash_key(seed, _SPLIT))
    draw = ((bits >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
    val, test = draw < config.val, draw >= 1.0 - config.test
    return {"train": ~(val | test), "val": val, "test": test}
