"""The same models in DGL and PyG, as their own documentation writes them.

Three layers, relu and dropout 0.5 between them (elu for GAT), Adam, cross entropy over the training vertices: one
call is one full-graph epoch. Everything that does not change between epochs is prepared before: DGL's sparse
formats, PyG's GCN normalisation.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graph import Graph
from weft.layers import ModelConfig

MODELS = ("gcn", "sage", "gat")
HIDDEN, HEADS, DROPOUT, RATE = 256, 4, 0.5, 0.01

Epoch = Callable[[], float]


def our_model(name: str) -> ModelConfig:
    """The same in weft."""
    gat = name == "gat"
    return ModelConfig(
        name=name,
        layers=3,
        hidden=HIDDEN // HEADS if gat else HIDDEN,
        heads=HEADS,
        activation="elu" if gat else "relu",
        dropout=DROPOUT,
    )


@dataclass(frozen=True)
class Endpoints:
    """In-edges as two lists of global ids, int64 [E] each."""

    source: Tensor
    destination: Tensor


def endpoints(graph: Graph) -> Endpoints:
    csr = graph.adjacency
    rows = torch.repeat_interleave(torch.arange(csr.num_rows, device=csr.indptr.device), csr.degrees())
    return Endpoints(csr.indices.long(), rows)


class Layers(nn.Module):
    """Convolutions one after another; `where` is whatever the library calls a graph."""

    def __init__(
        self, convolutions: list[nn.Module], activation: Callable[[Tensor], Tensor], graph_first: bool
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.activation, self.graph_first = activation, graph_first

    def forward(self, where: object, x: Tensor) -> Tensor:
        for depth, convolution in enumerate(self.convolutions):
            if depth > 0:
                x = functional.dropout(self.activation(x), DROPOUT, self.training)
            x = convolution(where, x) if self.graph_first else convolution(x, where)
            if x.dim() == 3:  # DGL's GAT keeps heads apart
                x = x.flatten(1)
        return x


def dgl_epoch(name: str, graph: Graph) -> Epoch:
    os.environ["DGLBACKEND"] = "pytorch"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
        from dgl.nn import GATConv, GraphConv, SAGEConv

    ends = endpoints(graph)
    where = dgl.graph((ends.source, ends.destination), num_nodes=graph.num_nodes, idtype=torch.int64)
    if name != "sage":
        where = dgl.add_self_loop(dgl.remove_self_loop(where))
    where.create_formats_()

    def layer(num_in: int, num_out: int, heads: int) -> nn.Module:
        if name == "gcn":
            return GraphConv(num_in, num_out)
        if name == "sage":
            return SAGEConv(num_in, num_out, "mean")
        return GATConv(num_in, num_out // heads, heads)

    return _epoch(_stack(name, graph, layer, graph_first=True), where, graph)


def pyg_epoch(name: str, graph: Graph) -> Epoch:
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    ends = endpoints(graph)

    def layer(num_in: int, num_out: int, heads: int) -> nn.Module:
        if name == "gcn":
            return GCNConv(num_in, num_out, cached=True)
        if name == "sage":
            return SAGEConv(num_in, num_out, "mean")
        return GATConv(num_in, num_out // heads, heads)

    where = torch.stack([ends.source, ends.destination])
    return _epoch(_stack(name, graph, layer, graph_first=False), where, graph)


def _stack(name: str, graph: Graph, layer: Callable[[int, int, int], nn.Module], graph_first: bool) -> Layers:
    torch.manual_seed(0)
    layers = [
        layer(graph.num_features, HIDDEN, HEADS),
        layer(HIDDEN, HIDDEN, HEADS),
        layer(HIDDEN, graph.num_classes, 1),
    ]
    return Layers(layers, functional.elu if name == "gat" else functional.relu, graph_first)


def _epoch(model: nn.Module, where: object, graph: Graph) -> Epoch:
    assert graph.x is not None and graph.y is not None and graph.train_mask is not None
    x, rows = graph.x, graph.train_mask.nonzero().squeeze(1)
    y = graph.y[rows]
    model.to(x.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    model.train()

    def epoch() -> float:
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(where, x)[rows], y)
        loss.backward()
        optimiser.step()
        return loss.item()

    return epoch
