"""Graphs as objects of DGL: a homogeneous one, or of several types of vertices a heterogeneous one."""

from typing import Any

from torch import Tensor

from weft.graph.csr import row_numbers
from weft.graph.foreign import require
from weft.graph.graph import Graph
from weft.graph.types import GraphTypes, short_name


def to_dgl(graph: Graph) -> Any:
    """The graph as a DGL graph, with a type for each of its types of vertices and relations where it has these.

    >>> found = weft.to_dgl(weft.load("synthetic:tiny"))
    >>> found.num_nodes(), weft.from_dgl(found).fingerprint == weft.load("synthetic:tiny").fingerprint
    (300, True)

    Vertices have `feat`, `label`, masks and `time`; edges `weight`, `feat`, `time` and, as relations of a graph of one
    type, `etype`. What is missing, a DGL graph does not have either. Features share the graph's memory. DGL orders
    types and relations by their names.
    """
    module = require("dgl", "a graph of DGL")
    csr = graph.adjacency
    ends = csr.indices.long(), row_numbers(csr.indptr)
    if graph.types is not None:
        return _hetero(module, graph, graph.types, ends)
    found = module.graph(ends, num_nodes=graph.num_nodes)
    whole = slice(None)
    found.ndata.update({**_features(graph.x), **_times(graph.time), **_of_target(graph, whole)})
    found.edata.update(_edge_data(graph, whole))
    if csr.relation is not None:
        found.edata["etype"] = csr.relation.long()
    return found


def _hetero(module: Any, graph: Graph, types: GraphTypes, ends: tuple[Tensor, Tensor]) -> Any:
    relation = graph.adjacency.relation
    assert relation is not None and graph.relation_names is not None
    edges = {}
    for number, (source, destination) in enumerate(types.ends):
        name = short_name(types, number, graph.relation_names[number])
        edges[types.names[source], name, types.names[destination]] = (relation == number).nonzero().squeeze(1)
    local = {
        triple: (ends[0][which] - types.starts[source], ends[1][which] - types.starts[destination])
        for (triple, which), (source, destination) in zip(edges.items(), types.ends, strict=True)
    }
    found = module.heterograph(local, {kind.name: kind.count for kind in types.vertices})
    for number, kind in enumerate(types.vertices):
        span = types.span(number)
        held = _features(graph.features_of(number))
        if graph.time is not None and not bool(graph.time[span].isnan().all()):
            held |= _times(graph.time[span])
        if number == types.target:
            held |= _of_target(graph, span)
        found.nodes[kind.name].data.update(held)
    for triple, which in edges.items():
        found.edges[triple].data.update(_edge_data(graph, which))
    return found


def _features(x: Tensor | None) -> dict[str, Tensor]:
    return {} if x is None else {"feat": x}


def _times(times: Tensor | None) -> dict[str, Tensor]:
    return {} if times is None else {"time": times}


def _of_target(graph: Graph, span: slice) -> dict[str, Tensor]:
    """Labels and masks of some vertices; masks of S splits as [N, S]."""
    held = {} if graph.y is None else {"label": graph.y[span]}
    for split, mask in graph.masks.items():
        some = mask[..., span]
        held[f"{split}_mask"] = some.T.contiguous() if some.dim() == 2 else some
    return held


def _edge_data(graph: Graph, edges: Tensor | slice) -> dict[str, Tensor]:
    csr = graph.adjacency
    held = {"weight": csr.weight, "feat": csr.features, "time": csr.time}
    return {name: rows[edges] for name, rows in held.items() if rows is not None}
