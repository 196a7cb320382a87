"""From a user's files to a Graph: edges in one file, what is known of the vertices in others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from weft.errors import UserError
from weft.graph.build import from_edges
from weft.graph.edgelist import EDGE_FILES, EdgeColumns, number_vertices, read_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import IdMap
from weft.graph.nodefile import Masks, NodeFile, read_node_file
from weft.graph.splits import parse_split
from weft.graph.tables import kind_of

SPLIT_SPECS = ("random", "planetoid")


def ingest_edges(
    edges: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    split: str | Path | None = None,
    src_column: str | None = None,
    dst_column: str | None = None,
    weight_column: str | None = None,
    relation_column: str | None = None,
    edge_features: Sequence[str] = (),
    id_column: str | None = None,
    label_columns: Sequence[str] = (),
    split_column: str | None = None,
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
    `edge_features` names columns of the edge list; beside an npy edge list, weights, relations and features of the
    edges are npy files of their own. `split` is such a file as `labels` too, or `random:0.6,0.2@SEED`, or
    `planetoid@SEED`.
    """
    edges = Path(edges)
    columns = {"id_column": id_column, "split_column": split_column, "header": header}
    asked_labels = tuple(label_columns)
    node_file = label_file = split_file = None
    if features is not None:
        wanted = asked_labels if labels is None else ()
        node_file = read_node_file(Path(features), "features", label_columns=wanted, **columns)  # type: ignore[arg-type]
    asked = EdgeColumns(src_column, dst_column, weight_column, relation_column, tuple(edge_features))
    edge_list = read_edges(edges, asked, header)
    if labels is not None:
        label_file = read_node_file(Path(labels), "labels", label_columns=asked_labels, **columns)  # type: ignore[arg-type]
    known = _known_vertices(node_file, label_file, num_nodes)
    src, dst, ids = number_vertices(edge_list, known, edges)
    if known is not None:
        ids = None if known.dense else known.ids
        count = known.ids.size
    else:
        count = int(max(src.max(), dst.max())) + 1
    vertices = known or IdMap(np.arange(count) if ids is None else ids, f"the vertices of {edges}")
    if split is not None and not is_split_spec(str(split)):
        split_file = read_node_file(Path(split), "split", num_nodes=count, **columns)  # type: ignore[arg-type]
    files = [file for file in (node_file, label_file, split_file) if file is not None]
    rows = {file.path: _rows_of(file, vertices) for file in files}
    x = None if node_file is None or node_file.x is None else node_file.x  # its rows are the vertices already
    y, class_names = _labels(files, rows, count)
    masks = _masks(files, rows, count)
    graph = from_edges(
        src,
        dst,
        x=x,
        y=y,
        weight=edge_list.weight,
        relation=edge_list.relation,
        relation_names=edge_list.relation_names,
        edge_features=edge_list.features,
        num_nodes=count,
        train_mask=masks.get("train"),
        val_mask=masks.get("val"),
        test_mask=masks.get("test"),
        num_classes=num_classes,
        class_names=class_names,
        undirected=undirected,
        drop_duplicates=drop_duplicates,
        name=name or edges.name.partition(".")[0],
        meta={"source": edges.name},
    )
    graph = replace(graph, original_ids=ids)
    if split is not None and split_file is None:
        return parse_split(graph, str(split))
    return graph


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


def _rows_of(file: NodeFile, vertices: IdMap) -> Array:
    """The vertex that each row of the file is about."""
    if file.ids is None:
        _same_count(file, vertices.ids.size)
        return np.arange(file.num_rows)
    IdMap(file.ids, f"the ids of {file.path}")  # refuses repeated ids
    return vertices.find(file.ids, f"in {file.path}, row")


def _labels(
    files: Sequence[NodeFile], rows: dict[Path, Array], count: int
) -> tuple[Array | None, Sequence[str] | None]:
    """The last file with labels wins; vertices that it does not mention have unknown labels."""
    for file in reversed(files):
        if file.labels is None:
            continue
        given = file.labels.y
        y = np.full((count, *given.shape[1:]), -1, np.float64 if given.dtype.kind == "f" else np.int64)
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
