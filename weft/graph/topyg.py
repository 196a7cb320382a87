"""Graphs as objects of PyG: a `Data`, or of several types of vertices a `HeteroData`."""

from typing import Any

import torch
from torch import Tensor

from weft.graph.csr import row_numbers
from weft.graph.foreign import require
from weft.graph.graph import Graph
from weft.graph.types import GraphTypes, short_name


def to_pyg(graph: Graph) -> Any:
    """The graph as a torch_geometric `Data` or, where it has types of vertices, `HeteroData`.

    >>> data = weft.to_pyg(weft.load("synthetic:tiny"))
    >>> data.num_nodes, weft.from_pyg(data).fingerprint == weft.load("synthetic:tiny").fingerprint
    (300, True)

    Edges have `edge_weight`, `edge_attr`, `edge_time` and, as relations of a `Data`, `edge_type`; vertices that are
    looked at at times have `node_time`. Features share the graph's memory.
    """
    module = require("torch_geometric.data", "a graph of PyG")
    csr = graph.adjacency
    ends = torch.stack([csr.indices.long(), row_numbers(csr.indptr)])
    if graph.types is not None:
        return _hetero(module.HeteroData(), graph, graph.types, ends)
    held = {"x": graph.x, "y": graph.y, **_masks(graph, slice(None)), **_edge_data(graph, slice(None))}
    held["node_time"] = graph.time
    if csr.relation is not None:
        held["edge_type"] = csr.relation.long()
    return module.Data(
        edge_index=ends,
        num_nodes=graph.num_nodes,
        **{name: rows for name, rows in held.items() if rows is not None},
    )


def _hetero(data: Any, graph: Graph, types: GraphTypes, ends: Tensor) -> Any:
    for kind, one in enumerate(types.vertices):
        data[one.name].num_nodes = one.count
        x = graph.features_of(kind)
        if x is not None:
            data[one.name].x = x
        span = types.span(kind)
        if graph.time is not None and not bool(graph.time[span].isnan().all()):
            data[one.name].node_time = graph.time[span]
        if kind == types.target:
            for name, rows in {"y": None if graph.y is None else graph.y[span], **_masks(graph, span)}.items():
                if rows is not None:
                    data[one.name][name] = rows
    relation = graph.adjacency.relation
    assert relation is not None and graph.relation_names is not None
    for number, (source, destination) in enumerate(types.ends):
        edges = (relation == number).nonzero().squeeze(1)
        first = torch.tensor([[types.starts[source]], [types.starts[destination]]])
        name = short_name(types, number, graph.relation_names[number])
        held = data[types.names[source], name, types.names[destination]]
        held.edge_index = ends[:, edges] - first
        for key, rows in _edge_data(graph, edges).items():
            held[key] = rows
    return data


def _masks(graph: Graph, span: slice) -> dict[str, Tensor]:
    """Masks of some vertices, [N], or of S splits [N, S] as PyG has them."""
    found = {split: mask[..., span] for split, mask in graph.masks.items()}
    return {f"{split}_mask": mask.T.contiguous() if mask.dim() == 2 else mask for split, mask in found.items()}


def _edge_data(graph: Graph, edges: Tensor | slice) -> dict[str, Tensor]:
    csr = graph.adjacency
    held = {"edge_weight": csr.weight, "edge_attr": csr.features, "edge_time": csr.time}
    return {name: rows[edges] for name, rows in held.items() if rows is not None}
