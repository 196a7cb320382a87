"""From a user's files to a Graph: edges in one file, what is known of the vertices in others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError
from weft.graph.build import from_edges
from weft.graph.convert import LabelKind
from weft.graph.edgelist import EDGE_FILES, EdgeColumns, EdgeList, number_vertices, read_edges, read_npy
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import IdMap
from weft.graph.missingrows import MissingRows, settle, without_unknown
from weft.graph.nodefile import Masks, NodeFile, read_node_file
from weft.graph.preparation import FeatureChoices, Preparation, describe_array, fit, prepared_batches
from weft.graph.splits import parse_split
from weft.graph.tables import kind_of

SPLIT_SPECS = ("random", "planetoid", "time")


def ingest_edges(
    edges: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    split: str | Path | None = None,
    vertex_data: Mapping[str, str | Path] | None = None,
    src_column: str | None = None,
    dst_column: str | None = None,
    weight_column: str | None = None,
    relation_column: str | None = None,
    time_column: str | None = None,
    vertex_time_column: str | None = None,
    edge_features: Sequence[str] = (),
    id_column: str | None = None,
    label_columns: Sequence[str] = (),
    label_kind: LabelKind = "auto",
    split_column: str | None = None,
    feature_columns: Sequence[str] = (),
    ignore_columns: Sequence[str] = (),
    category_columns: Sequence[str] = (),
    learned_columns: Sequence[str] = (),
    log_columns: Sequence[str] = (),
    raw_features: bool = False,
    prepared_as: Preparation | None = None,
    missing_rows: MissingRows = "error",
    header: bool | None = None,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
    name: str | None = None,
) -> Graph:
    """A Graph from an edge list (csv, tsv, txt, parquet, npy, npz) and files about its vertices.

    `features` and `labels` are tables with an id column, or arrays and tables whose row k is about vertex k.
    The features file says which vertices exist (it may hold nothing but ids); without one, they are the ids
    that occur in edges, ascending, or 0..num_nodes-1. A label or split column may stand in any of these files.
    `label_kind` says whether labels are classes or numbers that are to be predicted; "auto" takes them for numbers
    where any is a fraction. `edge_features` names columns of the edge list; beside an npy edge list, weights,
    relations, times and features of the edges are npy files of their own. `split` is such a file as `labels` too, or
    `random:0.6,0.2@SEED`, or `planetoid@SEED`, or `time:0.8,0.1` (the earliest train). `vertex_data` are npy files by
    the names of further columns, whose row k is about vertex k.

    `time_column` says when each edge came to be, `vertex_time_column`, of the features or labels, at which time each
    vertex is looked at: numbers or dates (docs/times.md).

    The columns of a features table are prepared (docs/tables.md): `feature_columns` are those, `ignore_columns` are
    none, `category_columns` hold names, `learned_columns` names of which models learn a row each, of `log_columns`
    logarithms are taken, and with `raw_features` numbers stay as they are. Arrays and columns of lists always do. With
    `prepared_as`, the preparation of another graph, nothing is decided anew: the columns become what they became there.
    `missing_rows` says what becomes of an id that edges or labels name and `features` has no row for: `error`, `zero`
    (a vertex whose features are zeros), or `drop` (its edges go).
    """
    edges = Path(edges)
    choices = FeatureChoices(
        features=tuple(feature_columns),
        ignored=tuple(ignore_columns),
        categories=tuple(category_columns),
        learned=tuple(learned_columns),
        logarithms=tuple(log_columns),
        raw=raw_features,
    )
    read = partial(
        read_node_file, id_column=id_column, split_column=split_column, header=header, time_column=vertex_time_column
    )
    asked = EdgeColumns(src_column, dst_column, weight_column, relation_column, tuple(edge_features), time_column)
    files = _read_files(edges, asked, features, labels, tuple(label_columns), choices, header, read)
    files = _settle(files, num_nodes, missing_rows)
    src, dst, ids = number_vertices(files.edges, files.known, edges)
    if files.known is not None:
        ids = None if files.known.dense else files.known.ids
        count = files.known.ids.size
    else:
        count = int(max(src.max(), dst.max())) + 1
    vertices = files.known or IdMap(np.arange(count) if ids is None else ids, f"the vertices of {edges}")
    if split is not None and not is_split_spec(str(split)):
        files = _with_split(files, read(Path(split), "split", num_nodes=count), vertices, missing_rows)
    y, class_names, masks = _labels_and_masks(files, vertices, label_kind)
    further = {name: read_npy(Path(path)) for name, path in (vertex_data or {}).items()}
    times = _times(files, vertices, vertex_time_column, further.pop("time", None))
    graph = from_edges(
        src,
        dst,
        x=None if files.nodes is None or files.nodes.x is None else _padded(files.nodes.x, count),
        y=y,
        weight=files.edges.weight,
        relation=files.edges.relation,
        relation_names=files.edges.relation_names,
        edge_features=files.edges.features,
        edge_time=files.edges.time,
        vertex_time=times,
        num_nodes=count,
        train_mask=masks.get("train"),
        val_mask=masks.get("val"),
        test_mask=masks.get("test"),
        vertex_data=further,
        label_kind=label_kind,
        num_classes=num_classes,
        class_names=class_names,
        undirected=undirected,
        drop_duplicates=drop_duplicates,
        name=name or edges.name.partition(".")[0],
        meta={"source": edges.name, **_id_column(files.nodes)},
    )
    graph = replace(graph, original_ids=ids)
    if split is not None and files.split is None:
        graph = parse_split(graph, str(split))
    return graph if files.nodes is None else _with_features(graph, files.nodes, choices, prepared_as, files.notes)


@dataclass(frozen=True)
class _Files:
    """What the files say, before vertices have numbers."""

    edges: EdgeList
    nodes: NodeFile | None  # of features
    labels: NodeFile | None = None
    split: NodeFile | None = None
    known: IdMap | None = None  # the vertices that the files declare; None where only the edges know
    notes: tuple[str, ...] = ()

    @property
    def about_vertices(self) -> list[NodeFile]:
        return [file for file in (self.nodes, self.labels, self.split) if file is not None]


def _read_files(
    edges: Path,
    asked: EdgeColumns,
    features: str | Path | None,
    labels: str | Path | None,
    label_columns: tuple[str, ...],
    choices: FeatureChoices,
    header: bool | None,
    read: Callable[..., NodeFile],
) -> _Files:
    nodes = label_file = None
    if features is not None:
        nodes = read(Path(features), "features", label_columns=label_columns if labels is None else (), choices=choices)
    elif choices != FeatureChoices():
        raise UserError("columns of features are chosen, but there is no table of features: give --features")
    edge_list = read_edges(edges, asked, header)
    if labels is not None:
        label_file = read(Path(labels), "labels", label_columns=label_columns)
    return _Files(edge_list, nodes, label_file)


def _settle(files: _Files, num_nodes: int | None, missing_rows: MissingRows) -> _Files:
    """The files with the vertices that they declare, and without what names others, if that is wanted."""
    known = _known_vertices(files.nodes, files.labels, num_nodes)
    if files.nodes is None or known is None:
        if missing_rows != "error":
            raise UserError("--missing-rows is about rows of features, and there are none: give --features")
        return replace(files, known=known)
    settled = settle(files.edges, known, [files.labels] if files.labels else [], missing_rows)
    labels = settled.files[0] if settled.files else None
    return replace(files, edges=settled.edges, known=settled.vertices, labels=labels, notes=settled.notes)


def _with_split(files: _Files, split: NodeFile, vertices: IdMap, missing_rows: MissingRows) -> _Files:
    if missing_rows != "drop":
        return replace(files, split=split)
    split, notes = without_unknown(split, vertices)
    return replace(files, split=split, notes=(*files.notes, *notes))


def _with_features(
    graph: Graph, file: NodeFile, choices: FeatureChoices, prepared_as: Preparation | None, notes: tuple[str, ...]
) -> Graph:
    """The graph with the features of a file, and how they were prepared. Rows are vertices; further ones have zeros."""
    if prepared_as is not None and choices != FeatureChoices():
        raise UserError("columns are chosen, and prepared as those of another graph: leave out the one or the other")
    train = graph.train_mask
    training = None if train is None else (train if train.dim() == 1 else train[0])[: file.num_rows].numpy()
    if file.table is None:
        if graph.x is None:
            return graph
        return replace(graph, preparation=describe_array(graph.x.numpy(), file.path.name, training).with_notes(*notes))
    labels = None if graph.y is None else graph.y[: file.num_rows].numpy()
    preparation = (prepared_as or fit(file.table, choices, training, labels)).with_notes(*notes)
    x = None
    if preparation.num_features:
        shape = (graph.num_nodes, preparation.num_features)
        refuse_beyond_memory(4 * shape[0] * shape[1], f"features of {shape[0]} x {shape[1]} numbers")
        x = torch.zeros(shape)
        begin = 0
        for rows in prepared_batches(preparation, file.table.table):
            x[begin : begin + len(rows)] = torch.from_numpy(rows)
            begin += len(rows)
    return replace(graph.with_vertex_data(x=x), preparation=preparation)


def _padded(x: Array, count: int) -> Array:
    """With rows of zeros for the vertices that the file has none of."""
    if x.ndim == 0 or x.shape[0] >= count:
        return x
    return np.concatenate([x, np.zeros((count - x.shape[0], *x.shape[1:]), x.dtype)])


def _id_column(nodes: NodeFile | None) -> dict[str, str]:
    return {} if nodes is None or nodes.id_name is None else {"id_column": nodes.id_name}


def is_split_spec(text: str) -> bool:
    return text.partition(":")[0].partition("@")[0] in SPLIT_SPECS


def is_edge_file(path: Path) -> bool:
    return path.is_file() and kind_of(path) in EDGE_FILES


def _known_vertices(features: NodeFile | None, labels: NodeFile | None, num_nodes: int | None) -> IdMap | None:
    """The vertices that the files declare; None where only the edges know."""
    if features is not None:
        if features.ids is not None:
            return IdMap(features.ids, f"the ids of {features.path}")
        _same_count(features, num_nodes)
        return IdMap(np.arange(features.num_rows), f"the {features.num_rows} rows of {features.path}")
    if num_nodes is not None:
        return IdMap(np.arange(num_nodes), f"0..{num_nodes - 1}")
    if labels is not None and labels.ids is None:
        return IdMap(np.arange(labels.num_rows), f"the {labels.num_rows} rows of {labels.path}")
    return None


def _same_count(file: NodeFile, num_nodes: int | None) -> None:
    if num_nodes is not None and file.num_rows != num_nodes:
        raise UserError(f"{file.path} has {file.num_rows} rows for {num_nodes} vertices: give one row per vertex")


def _rows_of(file: NodeFile, vertices: IdMap, with_rows: int) -> Array:
    """The vertex that each row of the file is about; with_rows: how many have a row of features."""
    if file.ids is None:
        if file.num_rows != with_rows:
            _same_count(file, vertices.ids.size)
        return np.arange(file.num_rows)
    IdMap(file.ids, f"the ids of {file.path}")  # refuses repeated ids
    return vertices.find(file.ids, f"in {file.path}, row")


def _times(files: _Files, vertices: IdMap, column: str | None, array: Array | None) -> Array | None:
    """The times of vertices, out of a column of any of their tables, or an array; NaN where no row tells one."""
    if column is None:
        return array
    for file in reversed(files.about_vertices):
        if file.times is not None:
            with_rows = vertices.ids.size if files.nodes is None else files.nodes.num_rows
            found = np.full(vertices.ids.size, np.nan).astype(file.times.dtype)  # of dates NaT
            found[_rows_of(file, vertices, with_rows)] = file.times
            return found
    raise UserError(f"no table of vertices has a column '{column}' with their times: give it in --features or --labels")


def _labels_and_masks(
    files: _Files, vertices: IdMap, kind: LabelKind
) -> tuple[Array | None, Sequence[str] | None, Masks]:
    count = vertices.ids.size
    with_rows = count if files.nodes is None else files.nodes.num_rows
    rows = {file.path: _rows_of(file, vertices, with_rows) for file in files.about_vertices}
    y, class_names = _labels(files.about_vertices, rows, count, kind)
    return y, class_names, _masks(files.about_vertices, rows, count)


def _labels(
    files: Sequence[NodeFile], rows: dict[Path, Array], count: int, kind: LabelKind
) -> tuple[Array | None, Sequence[str] | None]:
    """The last file with labels wins; vertices that it does not mention have unknown labels."""
    for file in reversed(files):
        if file.labels is None:
            continue
        given = file.labels.y
        if kind == "numbers" and file.labels.are_names:
            raise UserError(f"the labels of {file.path} are names, and numbers are to be predicted: give numbers")
        as_float = given.dtype.kind == "f" or kind == "numbers"
        unknown = np.nan if as_float else -1
        y = np.full((count, *given.shape[1:]), unknown, np.float64 if as_float else np.int64)
        y[rows[file.path]] = given
        return y, file.labels.class_names
    return None, None


def _masks(files: Sequence[NodeFile], rows: dict[Path, Array], count: int) -> Masks:
    for file in reversed(files):
        if file.masks is None:
            continue
        masks: Masks = {}
        for role, given in file.masks.items():
            if given.shape[-1] != file.num_rows:
                raise UserError(
                    f"the {role} split of {file.path} has {given.shape[-1]} entries for {file.num_rows} rows"
                )
            if given.dtype.kind not in "biu":
                raise UserError(f"the {role} split of {file.path} holds {given.dtype}: give true or false")
            masks[role] = np.zeros((*given.shape[:-1], count), np.bool_)
            masks[role][..., rows[file.path]] = given.astype(np.bool_)
        return masks
    return {}
