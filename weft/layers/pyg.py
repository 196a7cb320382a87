"""PyG's convolutions as layers: unchanged, on whatever part of the graph a layer is handed.

    from torch_geometric.nn import SAGEConv
    layer = weft.layers.pyg.Convolution(SAGEConv(64, 32))

A convolution sees the rows of sources and of destinations and the edges between them, as PyG's own loaders hand them
over. It runs where all sources' rows are here: on minibatches, and on the full graph with one worker.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView


class Convolution(nn.Module):
    """Any PyG layer that takes (x_src, x_dst) and edge_index, and where it does so, edge weights and features."""

    any_level = True  # needs nothing but the rows and edges that it is handed, however many rows come out

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution
        self._takes = set(inspect.signature(convolution.forward).parameters)

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        graph, x = graph.gathered(x)
        (block,) = graph.topology.plain.own
        csr = block.csr
        edges = torch.stack([csr.indices.long(), block.destinations])
        more: dict[str, Any] = {}
        if csr.weight is not None and "edge_weight" in self._takes:
            more["edge_weight"] = csr.weight.to(x.dtype)
        if csr.features is not None and "edge_attr" in self._takes and getattr(self.convolution, "edge_dim", None):
            more["edge_attr"] = csr.features.to(x.dtype)
        out: Tensor = self.convolution((x, graph.own(x)), edges, **more)
        return out


__all__ = ["Convolution"]
