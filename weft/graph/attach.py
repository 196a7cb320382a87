"""New vertices that come to a graph: their features, and the edges between them and the vertices that are there."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.build import csr_from_endpoints
from weft.graph.check import check_graph
from weft.graph.convert import to_edge_features, to_features, to_weights
from weft.graph.csr import row_numbers
from weft.graph.edgelist import EdgeColumns, EdgeList, number_vertices, read_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import IdMap, normal_ids
from weft.graph.interop import frames_as_files
from weft.graph.nodefile import NodeFile, read_node_file
from weft.graph.preparation import FeatureChoices, fit, prepared_batches
from weft.graph.relations import Relations
from weft.graph.times import to_times
from weft.graph.typedattach import attach_tables, new_vertices_of
from weft.graph.typedtables import DESCRIPTIONS
from weft.graph.typeschema import read_tables
from weft.graph.vertexdata import SPLITS

REVERSE = " (reverse)"
_CONVERT: Mapping[str, Callable[[Array, int], Tensor]] = {
    "weight": to_weights,
    "features": to_edge_features,
    "time": lambda values, count: to_times(values, count, "the times of edges"),
}


def attach(
    graph: Graph,
    edges: Any,
    features: Any = None,
    *,
    undirected: bool = False,
    src_column: str | None = None,
    dst_column: str | None = None,
    weight_column: str | None = None,
    relation_column: str | None = None,
    time_column: str | None = None,
    vertex_time_column: str | None = None,
    edge_features: Sequence[str] = (),
    id_column: str | None = None,
    label_columns: Sequence[str] = (),
    header: bool | None = None,
) -> Graph:
    """The graph with new vertices after its own, and with new edges.

    >>> graph = weft.from_edges(["a", "b"], ["b", "a"], ids=["a", "b"], x=[[0.0], [1.0]], y=[0, 1])
    >>> import pandas
    >>> new = pandas.DataFrame({"id": ["c"], "x": [0.5]})
    >>> weft.attach(graph, pandas.DataFrame({"from": ["a"], "to": ["c"]}), new)
    Graph('graph': 3 vertices, 3 edges, 1 features, 2 classes)

    edges, features: files as `weft.ingest` reads them, or data frames as `weft.from_pandas` does. An edge leads between
    any two vertices, old or new, by their ids; what edges carry in the graph (weights, relations, features,
    times), new ones must carry too. The features must be those of the graph's own vertices, column by column. New
    vertices have no label (a label column is left out) and belong to no split; further columns of vertex data are left
    out. A features file without ids is about the vertices that follow 0..N-1. undirected: each new edge is joined by
    its reverse.

    Of a graph with types of vertices, `edges` is a description of tables as `weft.ingest` reads it (docs/types.md),
    which says all of this: of the new rows of types, and of the new edges of relations.
    """
    if graph.types is not None:
        asked = (src_column, dst_column, weight_column, relation_column, time_column, vertex_time_column, id_column)
        others = features is not None or undirected or bool(edge_features or label_columns) or header is not None
        return _attach_types(graph, edges, others or any(name is not None for name in asked))
    if features is None:
        raise UserError(f"the vertices of graph '{graph.name}' have features: give those of the new ones, too")
    own = _x(graph)
    columns = EdgeColumns(src_column, dst_column, weight_column, relation_column, tuple(edge_features), time_column)
    with frames_as_files(edges, features, id_column) as (edge_file, node_file):
        assert node_file is not None
        listed = read_edges(edge_file, columns, header)
        new = _new_vertices(graph, node_file, id_column, label_columns, header, vertex_time_column)
        known = IdMap(new.all_ids, f"the ids of graph '{graph.name}' and {node_file}")
        src, dst, _ = number_vertices(listed, known, edge_file)
        numbered = replace(listed, src=src, dst=dst, names=None)
        joined = _with_edges(graph, numbered, len(known.ids), undirected, str(edge_file))
    count = new.x.shape[0]
    columns_of_all = {"x": torch.cat([own, new.x.to(own.dtype)])}
    if graph.y is not None:
        missing = math.nan if graph.num_targets else -1
        columns_of_all["y"] = torch.cat([graph.y, graph.y.new_full((count, *graph.y.shape[1:]), missing)])
    if graph.time is not None:
        times = np.full(count, np.nan) if new.times is None else new.times
        columns_of_all["time"] = torch.cat([graph.time, to_times(times, count, "the times of new vertices")])
    for split in SPLITS:
        if split in graph.masks:
            mask = graph.masks[split]
            columns_of_all[f"{split}_mask"] = torch.cat([mask, mask.new_zeros(*mask.shape[:-1], count)], -1)
    joined = replace(joined, vertex_data=columns_of_all, original_ids=None if known.dense else known.ids)
    check_graph(joined)
    return joined


class _New(NamedTuple):
    all_ids: Array  # of the graph's vertices, then of the new ones
    x: Tensor  # of the new ones
    times: Array | None  # of the new ones


def new_vertices(before: Graph, after: Graph) -> Tensor:
    """The vertices that were attached to a graph, int64: their numbers in what came of it."""
    if before.types is not None and after.types is not None:
        return new_vertices_of(before.types, after.types).nonzero().squeeze(1)
    return torch.arange(before.num_nodes, after.num_nodes)


def _attach_types(graph: Graph, description: Any, more: bool) -> Graph:
    """The same of a graph with types of vertices; `more`: whether anything else than a description was given."""
    if not isinstance(description, str | Path) or Path(description).suffix not in DESCRIPTIONS:
        raise UserError(
            f"graph '{graph.name}' has types of vertices: describe the tables of new vertices and of their edges in a "
            "file such as new.yaml, as those of the graph are (docs/types.md), and attach that"
        )
    if more:
        raise UserError(f"{description} says where everything is: leave other files and names of columns out")
    path = Path(description)
    return attach_tables(graph, read_tables(path), path.parent)


def _x(graph: Graph) -> Tensor:
    if graph.x is None:
        raise UserError(
            f"graph '{graph.name}' has no features, so that a model learns a row for each of its vertices and has none "
            "for new ones: train on a graph with features"
        )
    return graph.x


def _new_vertices(
    graph: Graph, file: Path, id_column: str | None, label_columns: Sequence[str], header: bool | None, time: str | None
) -> _New:
    rows = _read_as_before(graph, file, id_column, label_columns, header, time)
    if time is not None and rows.times is None:
        raise UserError(f"{file} has no column '{time}' with the times of the new vertices: name another")
    if rows.x is None:
        raise UserError(f"{file} has no features: give those of the new vertices, column by column as of the others")
    width = _x(graph).shape[1]
    if rows.x.shape[1] != width:
        raise UserError(
            f"{file} has {rows.x.shape[1]} features for the new vertices and those of graph '{graph.name}' have "
            f"{width}: give the same columns in the same order"
        )
    there = np.arange(graph.num_nodes) if graph.original_ids is None else normal_ids(graph.original_ids, "the ids")
    ids = np.arange(rows.num_rows) + graph.num_nodes if rows.ids is None else rows.ids
    if rows.ids is None and graph.original_ids is not None:
        raise UserError(f"{file} has no ids and the vertices of graph '{graph.name}' have: give the new ones some, too")
    if there.dtype.kind != ids.dtype.kind:  # text and integers: as text, by which edges may name them
        there, ids = there.astype(np.str_), ids.astype(np.str_)
    twice = np.flatnonzero(IdMap(there, f"the ids of graph '{graph.name}'").find_or_minus_one(ids, "id") >= 0)
    if twice.size:
        raise UserError(
            f"'{ids[twice[0]]}' in {file} is a vertex of graph '{graph.name}' already: leave its row out there"
        )
    return _New(np.concatenate([there, ids]), to_features(rows.x), rows.times)


def _read_as_before(
    graph: Graph, file: Path, id_column: str | None, label_columns: Sequence[str], header: bool | None, time: str | None
) -> NodeFile:
    """Rows of new vertices. Where the graph says how its features were made, these are to be made so here."""
    rows = read_node_file(file, "features", id_column, label_columns, header=header, time_column=time)
    if rows.table is None:
        return rows
    how = graph.preparation or fit(rows.table, FeatureChoices(raw=True))
    made = [*prepared_batches(how, rows.table.table)]
    return replace(rows, x=np.concatenate(made) if made else None)


def _with_edges(graph: Graph, new: EdgeList, num_nodes: int, undirected: bool, file: str) -> Graph:
    """The graph's edges and the new ones, with what they carry, between so many vertices."""
    old = graph.adjacency
    relation = _relations(graph, new, undirected, file)
    src, dst = new.src, new.dst
    back = np.flatnonzero(src != dst) if undirected else np.empty(0, np.int64)
    carried: dict[str, Tensor] = {}
    pairs = ("weight", old.weight, new.weight), ("features", old.features, new.features), ("time", old.time, new.time)
    for name, of_old, of_new in pairs:
        _same_data(of_old is not None, of_new is not None, name, graph, file)
        if of_old is None or of_new is None:
            continue
        rows = _CONVERT[name](of_new, src.size)
        if rows.shape[1:] != of_old.shape[1:]:
            raise UserError(
                f"the edges of {file} have {rows.shape[1]} features and those of graph '{graph.name}' "
                f"{of_old.shape[1]}: give the same columns in the same order"
            )
        carried[name] = torch.cat([of_old, rows, rows[torch.from_numpy(back)]])
    relations = Relations(total=graph.num_relations, names=graph.relation_names)
    if relation is not None and old.relation is not None:
        ahead, behind = relation
        relations = relations._replace(of_edge=torch.cat([old.relation, ahead, behind[torch.from_numpy(back)]]))
    adjacency = csr_from_endpoints(
        np.concatenate([old.indices.numpy(), src, dst[back]]),
        np.concatenate([row_numbers(old.indptr).numpy(), dst, src[back]]),
        num_nodes,
        carried.get("weight"),
        relations=relations,
        features=carried.get("features"),
        time=carried.get("time"),
    )
    return replace(graph, adjacency=adjacency, vertex_data={}, original_ids=None)


def _same_data(of_old: bool, of_new: bool, name: str, graph: Graph, file: str) -> None:
    """Refuses new edges that carry other data than the graph's."""
    if of_old and not of_new:
        raise UserError(
            f"the edges of graph '{graph.name}' have {name} and those of {file} have none: give them some, too"
        )
    if of_new and not of_old:
        raise UserError(f"the edges of {file} have {name} and those of graph '{graph.name}' have none: leave that out")


def _relations(graph: Graph, new: EdgeList, undirected: bool, file: str) -> tuple[Tensor, Tensor] | None:
    """The graph's numbers of the new edges' relations, and those of their reverses, int16 [E]; None: it has none."""
    if not graph.num_relations:
        if new.relation is not None:
            raise UserError(f"the edges of {file} have relations and graph '{graph.name}' has none: leave them out")
        return None
    if new.relation is None:
        raise UserError(f"graph '{graph.name}' has relations: give the edges of {file} theirs, with --relation-column")
    known = list(graph.relation_names or map(str, range(graph.num_relations)))
    number = {name: position for position, name in enumerate(known)}
    names = new.relation_names or tuple(map(str, range(int(new.relation.max()) + 1)))
    wanted = [[*names], [f"{name}{REVERSE}" for name in names] if undirected else [*names]]
    for name in (name for side in wanted for name in side):
        if name not in number:
            raise unknown("relation", name, known)
    ahead, behind = (np.array([number[name] for name in side], np.int16)[new.relation] for side in wanted)
    return torch.from_numpy(ahead), torch.from_numpy(behind)
