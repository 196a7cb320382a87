"""From edges in memory to a checked Graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError
from weft.graph.check import check_graph
from weft.graph.convert import (
    ArrayLike,
    LabelKind,
    as_array,
    count_classes,
    to_column,
    to_edge_features,
    to_endpoints,
    to_features,
    to_labels,
    to_mask,
    to_weights,
)
from weft.graph.csr import CSR, filter_csr, row_numbers
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import map_endpoints
from weft.graph.relations import MAX_RELATIONS, Relations, check_count, number_relations
from weft.graph.times import say_which_are_dates, to_times
from weft.graph.vertexdata import VERTEX_DATA, check_free_name, present
from weft.kernels import build_csr

MAX_NODES = 2**31 - 1  # column indices are int32
NO_RELATIONS = Relations()


def from_edges(
    src: ArrayLike,
    dst: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,  # [N, F]
    y: ArrayLike | None = None,  # [N] or [N, C]; numbers that are to be predicted: [N] or [N, T]
    weight: ArrayLike | None = None,  # [E]
    relation: ArrayLike | None = None,  # [E] the kind of each edge, as numbers from 0 or as names
    edge_features: ArrayLike | None = None,  # [E, F]
    edge_time: ArrayLike | None = None,  # [E], numbers or dates: when each edge came to be
    num_nodes: int | None = None,
    ids: ArrayLike | None = None,  # [N] original ids, integers or strings; src and dst then hold such ids
    train_mask: ArrayLike | None = None,  # [N] or [S, N]
    val_mask: ArrayLike | None = None,
    test_mask: ArrayLike | None = None,
    vertex_time: ArrayLike | None = None,  # [N], likewise: the time at which each vertex is looked at
    vertex_data: Mapping[str, ArrayLike] | None = None,  # further data of vertices by name, [N, ...] each
    label_kind: LabelKind = "auto",  # whether y are classes or numbers; auto: numbers where any is a fraction
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    num_relations: int | None = None,
    relation_names: Sequence[str] | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
    name: str = "graph",
    meta: dict[str, Any] | None = None,
) -> Graph:
    """A Graph from two arrays of endpoints, or one `edge_index` of shape [2, E] as `src`.

    >>> graph = weft.from_edges([0, 1, 2], [1, 2, 0], x=[[0.0], [1.0], [2.0]], y=[0, 1, 1], undirected=True)
    >>> graph.num_nodes, graph.num_edges, graph.num_classes
    (3, 6, 2)

    With `undirected` each edge u -> v is joined by v -> u of the same weight, features and time (a self-loop stays
    single); where edges have relations, the reverse of relation r is a relation of its own. `drop_duplicates` keeps
    the first of several equal edges; those of different relations differ. Self-loops are kept as they are. Without
    `num_nodes`, N is the length of `ids`, `x` or `y`, else the largest endpoint + 1. `vertex_data` is carried into the
    shards, where it is `shard.vertex_data[name]`.
    """
    src_array, dst_array = to_endpoints(src, dst)
    original_ids = None if ids is None else as_array(ids)
    features = None if x is None else to_features(x)
    labels = None if y is None else to_labels(y, label_kind)
    count = _node_count(num_nodes, original_ids, features, labels, src_array, dst_array)
    if original_ids is not None:
        src_array, dst_array = map_endpoints(original_ids, src_array, dst_array)
    num_edges = src_array.size
    relations = Relations(total=num_relations or 0)
    if relation is not None:
        relations = number_relations(as_array(relation), num_edges, num_relations, relation_names)
    adjacency = csr_from_endpoints(
        src_array,
        dst_array,
        count,
        None if weight is None else to_weights(weight, num_edges),
        undirected,
        drop_duplicates,
        relations=relations,
        features=None if edge_features is None else to_edge_features(edge_features, num_edges),
        time=None if edge_time is None else to_times(edge_time, num_edges, "the times of edges"),
    )
    if undirected:
        relations = relations.with_reverses()
    graph = Graph(
        adjacency=adjacency,
        vertex_data=present(
            {
                "x": features,
                "y": labels,
                "train_mask": to_mask(train_mask),
                "val_mask": to_mask(val_mask),
                "test_mask": to_mask(test_mask),
                "time": None if vertex_time is None else to_times(vertex_time, count, "the times of vertices"),
                **_further_columns(vertex_data or {}),
            }
        ),
        num_classes=count_classes(labels, num_classes, class_names),
        name=name,
        original_ids=original_ids,
        class_names=None if class_names is None else tuple(class_names),
        num_relations=relations.total,
        relation_names=relations.names,
        meta=say_which_are_dates(meta or {}, edges=edge_time, vertices=vertex_time),
    )
    check_graph(graph)
    return graph


def _further_columns(given: Mapping[str, ArrayLike]) -> dict[str, Tensor]:
    for name in given:
        check_free_name(name)
        if name in VERTEX_DATA:
            argument = "vertex_time" if name == "time" else name
            raise UserError(f"vertex data '{name}' has an argument of its own: give {argument}= instead")
    return {name: to_column(name, values) for name, values in given.items()}


def csr_from_endpoints(
    src: Array,
    dst: Array,
    num_nodes: int,
    weight: Tensor | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
    relations: Relations = NO_RELATIONS,
    features: Tensor | None = None,
    time: Tensor | None = None,
) -> CSR:
    """In-edges as CSR, each row in ascending order of source, then relation; ends are integers in [0, num_nodes).

    A vertex's edges from itself stay in the order given: where one loop is wanted, it is the last of them.
    """
    if num_nodes > MAX_NODES:
        raise UserError(f"the graph has {num_nodes} vertices, more than the {MAX_NODES} that weft can hold")
    refuse_beyond_memory(24 * num_nodes, f"a graph of {num_nodes} vertices")
    _check_endpoints(src, dst, num_nodes)
    ends = [np.empty(0, np.int32), np.empty(0, np.int32)]
    for k, (there, back) in enumerate(((src, dst), (dst, src))):
        other = back[src != dst] if undirected else back[:0]
        ends[k] = np.concatenate([there, other], dtype=np.int32, casting="unsafe")
    source, destination = (torch.from_numpy(end) for end in ends)
    data = {"weight": weight, "relation": relations.of_edge, "features": features, "time": time}
    carried = {name: values for name, values in data.items() if values is not None}
    if undirected and carried:
        check_count(2 * relations.total)
        reversible = torch.from_numpy(src != dst)
        for name, values in carried.items():
            back_values = values[reversible]
            carried[name] = torch.cat([values, back_values + relations.total if name == "relation" else back_values])
    if "relation" in carried:  # equal ends keep their order, so they ascend by relation afterwards too
        by_relation = torch.argsort(torch.where(source == destination, 0, carried["relation"]), stable=True)
        source, destination = source[by_relation], destination[by_relation]
        carried = {name: values[by_relation] for name, values in carried.items()}
    indptr, indices, order = build_csr(source, destination, num_nodes, num_nodes)
    csr = CSR(indptr, indices, num_nodes, **{name: values[order] for name, values in carried.items()})
    del order
    return _without_duplicates(csr) if drop_duplicates and csr.num_edges else csr


def _without_duplicates(csr: CSR) -> CSR:
    """The first of equal edges, which lie one after another, but for loops of several relations."""
    keep = torch.ones(csr.num_edges, dtype=torch.bool)
    torch.ne(csr.indices[1:], csr.indices[:-1], out=keep[1:])
    if csr.relation is not None:
        keep[1:] |= csr.relation[1:] != csr.relation[:-1]
        rows = row_numbers(csr.indptr)
        loops = (csr.indices == rows).nonzero().squeeze(1)
        kinds = rows[loops] * (MAX_RELATIONS + 1) + csr.relation[loops]
        keep[loops] = False
        keep[loops[torch.from_numpy(np.unique(kinds.numpy(), return_index=True)[1])]] = True
    keep[csr.indptr[:-1][csr.indptr[:-1] < csr.num_edges]] = True  # a row's first edge has no predecessor
    return filter_csr(csr, keep)


def to_undirected(graph: Graph) -> Graph:
    """The same graph with every edge in both directions, each once; of equal edges the first counts.

    Where edges have relations, those that run backwards are of relations of their own.
    """
    adjacency = graph.adjacency
    dst = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), adjacency.degrees().numpy())
    relations = Relations(adjacency.relation, graph.num_relations, graph.relation_names)
    both = csr_from_endpoints(
        adjacency.indices.numpy(),
        dst,
        graph.num_nodes,
        adjacency.weight,
        undirected=True,
        drop_duplicates=True,
        relations=relations,
        features=adjacency.features,
        time=adjacency.time,
    )
    relations = relations.with_reverses()
    types = None if graph.types is None else graph.types.with_reverses()
    return replace(graph, adjacency=both, num_relations=relations.total, relation_names=relations.names, types=types)


def _node_count(
    num_nodes: int | None,
    ids: Array | None,
    x: Tensor | None,
    y: Tensor | None,
    src: Array,
    dst: Array,
) -> int:
    if num_nodes is not None:
        return int(num_nodes)
    for holder in (ids, x, y):
        if holder is not None:
            return int(holder.shape[0])
    if src.dtype.kind not in "iu":
        raise UserError(f"edges hold {src.dtype} ids: pass ids= with the original id of each vertex")
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _check_endpoints(src: Array, dst: Array, num_nodes: int) -> None:
    for ends, role in ((src, "source"), (dst, "destination")):
        if ends.dtype.kind not in "iu":
            raise UserError(f"edges hold {ends.dtype} {role}s: vertices are numbered by integers")
        if ends.size and (int(ends.min()) < 0 or int(ends.max()) >= num_nodes):
            at = int(np.flatnonzero((ends < 0) | (ends >= num_nodes))[0])
            raise UserError(
                f"edge {at} ({int(src[at])} -> {int(dst[at])}) points outside the graph: its {role} must be "
                f"in 0..{num_nodes - 1}; mend the edge or give more vertices"
            )
