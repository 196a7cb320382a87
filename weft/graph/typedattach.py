"""New vertices that come to a graph of several types: rows of the types' tables, and edges of its relations.

The vertices of a type lie in one piece, so that new ones come after the old ones of their type and the vertices of
later types are numbered anew. Ids of the user's own files stay what they were.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.assemble import Connections, Triple
from weft.graph.build import csr_from_endpoints
from weft.graph.check import check_graph
from weft.graph.convert import to_edge_features, to_features, to_weights
from weft.graph.csr import row_numbers
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import IdMap, normal_ids
from weft.graph.nodefile import NodeFile, read_node_file
from weft.graph.preparation import FeatureChoices, Preparation, fit, prepare_array
from weft.graph.relations import Relations
from weft.graph.times import to_times
from weft.graph.typedtables import connect, prepared_rows, read_relation
from weft.graph.types import GraphTypes, VertexType, name_relation
from weft.graph.typeschema import GraphTables, TypeTable
from weft.graph.vertexdata import SPLITS, TYPE, block_name, present


def attach_tables(graph: Graph, tables: GraphTables, folder: Path) -> Graph:
    """The graph with the new vertices and edges of tables, whose files lie in a folder.

    A type without a file gets no vertices. A relation that runs backwards in the graph does so for new edges, too.
    """
    types = graph.types
    assert types is not None, "graphs of one type have a file of new vertices"
    for kind in tables.types:
        types.number(kind)
    come = {
        kind: _new_vertices(graph, types, number, folder, tables.types.get(kind, TypeTable()))
        for number, kind in enumerate(types.names)
    }
    grown = _grown(types, come)
    place = torch.cat(
        [torch.arange(one.count) + start for one, start in zip(types.vertices, grown.starts, strict=False)]
    )  # of each old vertex, its new number
    links = _new_edges(graph, types, tables, folder, {kind: new.ids for kind, new in come.items()})
    joined = replace(
        graph,
        adjacency=_with_edges(graph, grown, place, links),
        vertex_data=_vertex_data(graph, grown, place, come),
        original_ids=_ids([new.ids for new in come.values()]),
        types=grown,
        meta=_meta(graph, grown),
    )
    check_graph(joined)
    return joined


def new_vertices_of(before: GraphTypes, after: GraphTypes) -> Tensor:
    """Which vertices of a graph were attached, bool [N]: those after the old ones of their types."""
    new = torch.zeros(after.num_nodes, dtype=torch.bool)
    for kind, one in enumerate(before.vertices):
        new[after.starts[kind] + one.count : after.starts[kind + 1]] = True
    return new


# -- vertices --------------------------------------------------------------------------------------------------------


class _Come(NamedTuple):
    """What comes to a type."""

    ids: IdMap  # of its old vertices, then of the new ones
    num_new: int = 0
    x: Tensor | None = None  # of the new ones
    times: Array | None = None  # of the new ones


def _new_vertices(graph: Graph, types: GraphTypes, number: int, folder: Path, table: TypeTable) -> _Come:
    kind = types.vertices[number]
    where = f"the ids of type '{kind.name}' in graph '{graph.name}'"
    old = _old_ids(graph, types, number)
    if table.file is None:
        return _Come(IdMap(old, where))
    if not kind.num_features:
        raise UserError(
            f"type '{kind.name}' of graph '{graph.name}' has no features, so that a model learns a row for each of its "
            "vertices and has none for new ones: leave its file out, and edges that name new ones"
        )
    path = folder / table.file
    file = _read(path, table, kind.preparation)
    if table.time_column is not None and file.times is None:
        raise UserError(f"{path} has no column '{table.time_column}' with the times of type '{kind.name}': mend it")
    x = _features(file, kind, graph.name)
    if x.shape[1] != kind.num_features:
        raise UserError(
            f"{path} has {x.shape[1]} features for new vertices of type '{kind.name}' and those of graph "
            f"'{graph.name}' have {kind.num_features}: give the same columns in the same order"
        )
    return _Come(_joined_ids(old, file, kind.name, graph.name), file.num_rows, x, file.times)


def _read(path: Path, table: TypeTable, preparation: Preparation | None) -> NodeFile:
    """Where it is known how features are made, columns are found by their names; else all but labels are features."""
    if preparation is not None:
        return read_node_file(path, "features", id_column=table.id, time_column=table.time_column)
    return read_node_file(
        path,
        "features",
        id_column=table.id,
        label_columns=table.label,
        split_column=table.split_column,
        time_column=table.time_column,
        choices=FeatureChoices(features=table.features, ignored=table.ignore, raw=True),
    )


def _features(file: NodeFile, kind: VertexType, name: str) -> Tensor:
    """Of new vertices, made as those of the old ones."""
    rows = file.x
    if file.table is None and rows is not None and kind.preparation is not None:
        rows = prepare_array(kind.preparation, rows, file.path)
    if file.table is not None:
        rows = prepared_rows(file, kind.preparation or fit(file.table, FeatureChoices(raw=True)))
    if rows is None:
        raise UserError(
            f"{file.path} has no features, and vertices of type '{kind.name}' of graph '{name}' have: give them"
        )
    return to_features(rows)


def _old_ids(graph: Graph, types: GraphTypes, number: int) -> Array:
    if graph.original_ids is None:
        return np.arange(types.vertices[number].count)
    return normal_ids(graph.original_ids[types.span(number)], "the ids")


def _joined_ids(old: Array, file: NodeFile, kind: str, name: str) -> IdMap:
    """The ids of a type's vertices, those of new ones after the old ones."""
    where = f"the ids of type '{kind}' in graph '{name}' and {file.path}"
    if file.ids is None:
        counted = np.arange(old.size)
        if not np.array_equal(old, counted.astype(old.dtype)):
            raise UserError(
                f"{file.path} has no ids and the vertices of type '{kind}' have: give the new ones some, too"
            )
        new = np.arange(old.size, old.size + file.num_rows)
    else:
        new = normal_ids(file.ids, f"the ids in {file.path}")
    if old.dtype.kind != new.dtype.kind:  # text and integers: as text, by which edges may name them
        old, new = old.astype(np.str_), new.astype(np.str_)
    twice = np.flatnonzero(IdMap(old, where).find_or_minus_one(new, "id") >= 0)
    if twice.size:
        raise UserError(
            f"'{kind}:{new[twice[0]]}' in {file.path} is a vertex of graph '{name}' already: leave its row out there"
        )
    return IdMap(np.concatenate([old, new]), where)


def _ids(each: Sequence[IdMap]) -> Array | None:
    """The ids of all vertices, as a graph that is made at once has them."""
    if all(one.dense for one in each):
        return None
    ids = [one.ids for one in each]
    if any(one.dtype.kind not in "iu" for one in ids):
        ids = [one.astype(np.str_) for one in ids]
    return np.concatenate(ids)


def _grown(types: GraphTypes, come: Mapping[str, _Come]) -> GraphTypes:
    vertices = tuple(one.model_copy(update={"count": one.count + come[one.name].num_new}) for one in types.vertices)
    return GraphTypes(vertices=vertices, ends=types.ends, target=types.target, reverses=types.reverses)


def _vertex_data(graph: Graph, grown: GraphTypes, place: Tensor, come: Mapping[str, _Come]) -> dict[str, Tensor]:
    """What vertices carry: new ones have no label, and belong to no split."""

    def spread(rows: Tensor, missing: float) -> Tensor:
        wider = rows.new_full((grown.num_nodes, *rows.shape[1:]), missing)
        wider[place] = rows
        return wider

    columns: dict[str, Tensor | None] = {TYPE: grown.column()}
    for number, new in enumerate(come.values()):
        x = graph.features_of(number)
        columns[block_name(number)] = x if x is None or new.x is None else torch.cat([x, new.x.to(x.dtype)])
    if graph.y is not None:
        columns["y"] = spread(graph.y, math.nan if graph.num_targets else -1)
    for split in SPLITS:
        if split in graph.masks:
            mask = graph.masks[split]
            wider = mask.new_zeros(*mask.shape[:-1], grown.num_nodes)
            wider[..., place] = mask
            columns[f"{split}_mask"] = wider
    if graph.time is not None:
        times = spread(graph.time, math.nan)
        for number, new in enumerate(come.values()):
            if new.times is not None:
                first = grown.starts[number + 1] - new.num_new
                times[first : first + new.num_new] = to_times(new.times, new.num_new, "the times of new vertices")
        columns["time"] = times
    return present(columns)


def _meta(graph: Graph, grown: GraphTypes) -> dict[str, Any]:
    """With the fingerprint of the graph that vertices first came to, whose learned rows are those of this one."""
    first = graph.meta.get("attached_to", graph.fingerprint)
    return {**graph.meta, "node_types": {one.name: one.count for one in grown.vertices}, "attached_to": first}


# -- edges -----------------------------------------------------------------------------------------------------------


class _Links(NamedTuple):
    """New edges of one relation, whose ends are numbered within their types."""

    relation: int
    edges: Connections


def _new_edges(
    graph: Graph, types: GraphTypes, tables: GraphTables, folder: Path, ids: Mapping[str, IdMap]
) -> list[_Links]:
    """Edges of all tables, and of the relations that run these backwards."""
    known = list(graph.relation_names or ())
    number = {name: relation for relation, name in enumerate(known)}
    given: set[Triple] = {table.triple for table in tables.relations}
    named = [name_relation(*triple) for triple in tables.triples]
    for name in named:
        if name not in number:
            raise unknown(f"relation of graph '{graph.name}':", name, known)
    backwards = {there: back for pair in types.reverses for there, back in (pair, pair[::-1])}
    listed = {number[name_relation(*triple)] for triple in given}
    notes: dict[str, list[str]] = {kind: [] for kind in types.names}
    links = []
    for table in tables.relations:
        path, relation = folder / table.file, number[name_relation(*table.triple)]
        edges = connect(path, table, read_relation(folder, table), ids, tables.missing_rows, notes)
        _same_data(graph, relation, edges, path)
        links.append(_Links(relation, edges))
        back = backwards.get(relation)
        if back is not None and back not in listed:
            links.append(_Links(back, edges._replace(ends=edges.ends[::-1])))
    return links


def _same_data(graph: Graph, relation: int, new: Connections, path: Path) -> None:
    """Refuses new edges that carry other data than the relation's old ones."""
    csr, names = graph.adjacency, graph.relation_names
    assert csr.relation is not None and names is not None
    for what, old, more, without in (  # without: what edges of relations that have no weights or features carry
        ("weights", csr.weight, new.weight, 1),
        ("features", csr.features, new.features, 0),
        ("times", csr.time, new.time, None),
    ):
        if more is not None and old is None:
            raise UserError(
                f"the edges of {path} have {what} and those of graph '{graph.name}' have none: leave them out"
            )
        if more is not None or old is None:
            continue
        if without is None or bool((old[csr.relation == relation] != without).any()):
            raise UserError(
                f"the edges '{names[relation]}' of graph '{graph.name}' have {what} and those of {path} have none: "
                "give them some, too"
            )


def _with_edges(graph: Graph, grown: GraphTypes, place: Tensor, links: Sequence[_Links]) -> Any:
    """The graph's edges and the new ones, with what they carry, relation by relation as a graph of tables has them."""
    old = graph.adjacency
    assert old.relation is not None
    sources, destinations = [place[old.indices.long()]], [place[row_numbers(old.indptr)]]
    relations = [old.relation]
    carried = {name: [rows] for name, rows in old.edge_data.items() if name != "relation"}
    for relation, new in links:
        count = len(new.ends[0])
        for side, (ends, kind) in enumerate(zip((sources, destinations), grown.ends[relation], strict=True)):
            ends.append(torch.as_tensor(new.ends[side]).long() + grown.starts[kind])
        relations.append(torch.full((count,), relation, dtype=torch.int16))
        for name, rows in carried.items():
            rows.append(_carried(name, new, count, rows[0]))
    relation_of = torch.cat(relations)
    order = torch.argsort(relation_of, stable=True)
    data = {name: torch.cat(rows)[order] for name, rows in carried.items()}
    return csr_from_endpoints(
        torch.cat(sources)[order].numpy(),
        torch.cat(destinations)[order].numpy(),
        grown.num_nodes,
        data.get("weight"),
        relations=Relations(relation_of[order], graph.num_relations, graph.relation_names),
        features=data.get("features"),
        time=data.get("time"),
    )


def _carried(name: str, new: Connections, count: int, old: Tensor) -> Tensor:
    """What new edges of a relation carry of one kind; like the old ones where the relation has none of it."""
    if name == "time":
        return to_times(new.time, count, "the times of edges")
    given = new.weight if name == "weight" else new.features
    if given is None:
        return old.new_full((count, *old.shape[1:]), 1 if name == "weight" else 0)
    rows = to_weights(given, count) if name == "weight" else to_edge_features(given, count)
    if rows.shape[1:] != old.shape[1:]:
        raise UserError(
            f"new edges have {rows.shape[1]} features and those of the graph {old.shape[1]}: give the same columns in "
            "the same order"
        )
    return rows
