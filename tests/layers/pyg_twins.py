"""Each native layer beside PyG's own: which of their parameters hold the same."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.layers import GAT, GCN, GIN, RGCN, SAGE, GATv2, Transformer
from weft.layers.layer import Layer

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is not installed")

Pairs = list[tuple[Tensor, Tensor]]  # a parameter of PyG's layer, and what of ours has its shape and meaning


@dataclass(frozen=True)
class Sizes:
    num_in: int = 5
    num_out: int = 3
    heads: int = 2
    relations: int = 3
    edge_features: int = 2  # of twins that read them, and edge weights as one more


def gcn(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    theirs = pyg.GCNConv(sizes.num_in, sizes.num_out)
    return theirs, [(theirs.lin.weight, ours.weight), (theirs.bias, ours.bias)]


def sage(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    theirs = pyg.SAGEConv(sizes.num_in, sizes.num_out, aggr=ours.reduce)
    left, right = theirs.lin_l, theirs.lin_r
    return theirs, [(left.weight, ours.neighbour), (left.bias, ours.bias), (right.weight, ours.root)]


def gat(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    theirs = pyg.GATConv(sizes.num_in, sizes.num_out, heads=sizes.heads, edge_dim=_edge_dim(ours))
    logits = [(theirs.att_src, ours.source[None]), (theirs.att_dst, ours.target[None])]
    if ours.edges:
        logits += [(theirs.lin_edge.weight, ours.edge), (theirs.att_edge, ours.edge_term[None])]
    return theirs, [(theirs.lin.weight, ours.weight), (theirs.bias, ours.bias), *logits]


def gatv2(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    theirs = pyg.GATv2Conv(sizes.num_in, sizes.num_out, heads=sizes.heads, edge_dim=_edge_dim(ours))
    left, right = theirs.lin_l, theirs.lin_r
    pairs = [(left.weight, ours.key), (left.bias, ours.key_bias)]
    pairs += [(right.weight, ours.query), (right.bias, ours.query_bias)]
    pairs += [(theirs.lin_edge.weight, ours.edge)] if ours.edges else []
    return theirs, [*pairs, (theirs.att, ours.att[None]), (theirs.bias, ours.bias)]


def transformer(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    theirs = pyg.TransformerConv(
        sizes.num_in, sizes.num_out, heads=sizes.heads, concat=ours.concat, edge_dim=_edge_dim(ours)
    )
    pairs = []
    for name in ("query", "key", "value"):
        linear = getattr(theirs, f"lin_{name}")
        pairs += [(linear.weight, getattr(ours, name)), (linear.bias, getattr(ours, f"{name}_bias"))]
    pairs += [(theirs.lin_edge.weight, ours.edge)] if ours.edges else []
    return theirs, [*pairs, (theirs.lin_skip.weight, ours.root), (theirs.lin_skip.bias, ours.bias)]


def gin(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    first, second = torch.nn.Linear(sizes.num_in, sizes.num_out), torch.nn.Linear(sizes.num_out, sizes.num_out)
    norm = torch.nn.BatchNorm1d(sizes.num_out)
    theirs = pyg.GINConv(torch.nn.Sequential(first, norm, torch.nn.ReLU(), second), train_eps=True)
    pairs = [(first.weight, ours.first), (first.bias, ours.first_bias), (theirs.eps, ours.eps[None])]
    pairs += [(second.weight, ours.second), (second.bias, ours.bias)]
    return theirs, [*pairs, (norm.weight, ours.norm.gain), (norm.bias, ours.norm.shift)]


def rgcn(ours: Any, sizes: Sizes) -> tuple[torch.nn.Module, Pairs]:
    bases = None if ours.coefficients is None else ours.coefficients.shape[1]
    theirs = pyg.RGCNConv(sizes.num_in, sizes.num_out, sizes.relations, num_bases=bases)
    matrices = ours.neighbour.view(sizes.num_out, -1, sizes.num_in).permute(1, 2, 0)
    pairs = [(theirs.weight, matrices), (theirs.root, ours.root.t()), (theirs.bias, ours.bias)]
    return theirs, pairs if bases is None else [*pairs, (theirs.comp, ours.coefficients)]


def _edge_dim(ours: Any) -> int | None:
    return ours.edges.num_columns or None


@dataclass(frozen=True)
class Twin:
    build: Callable[[Sizes], Layer]
    beside: Callable[[Any, Sizes], tuple[torch.nn.Module, Pairs]]

    def both(self, sizes: Sizes) -> tuple[Layer, torch.nn.Module, Pairs]:
        """The two layers as they start; every parameter of either is in one of the pairs."""
        ours = self.build(sizes)
        theirs, pairs = self.beside(ours, sizes)
        assert sum(a.numel() for a, _ in pairs) == _count(theirs) == sum(b.numel() for _, b in pairs) == _count(ours)
        assert all(one.shape == other.shape for one, other in pairs)
        return ours, theirs, pairs


def _count(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def _attending(kind: Any, **more: Any) -> Callable[[Sizes], Layer]:
    return lambda sizes: kind(sizes.num_in, sizes.num_out, sizes.heads, **more)


def _with_edges(kind: Any, **more: Any) -> Callable[[Sizes], Layer]:
    return lambda sizes: _attending(kind, edge_dim=sizes.edge_features, edge_weight=True, **more)(sizes)


def _related(bases: int) -> Callable[[Sizes], Layer]:
    return lambda sizes: RGCN(sizes.num_in, sizes.num_out, sizes.relations, bases=bases)


def _sage(reduce: Any) -> Callable[[Sizes], Layer]:
    return lambda sizes: SAGE(sizes.num_in, sizes.num_out, reduce)


TWINS = {
    "gcn": Twin(lambda sizes: GCN(sizes.num_in, sizes.num_out), gcn),
    "sage-mean": Twin(_sage("mean"), sage),
    "sage-max": Twin(_sage("max"), sage),
    "sage-sum": Twin(_sage("sum"), sage),
    "gat": Twin(_attending(GAT), gat),
    "gatv2": Twin(_attending(GATv2), gatv2),
    "transformer": Twin(_attending(Transformer), transformer),
    "transformer-mean": Twin(_attending(Transformer, concat=False), transformer),
    "gat-edges": Twin(_with_edges(GAT), gat),
    "gatv2-edges": Twin(_with_edges(GATv2), gatv2),
    "transformer-edges": Twin(_with_edges(Transformer), transformer),
    "transformer-mean-edges": Twin(_with_edges(Transformer, concat=False), transformer),
    "gin": Twin(lambda sizes: GIN(sizes.num_in, sizes.num_out), gin),
    "rgcn": Twin(_related(0), rgcn),
    "rgcn-bases": Twin(_related(2), rgcn),
}


def starts(twin: Twin, sizes: Sizes, count: int) -> Iterator[Pairs]:
    """The two layers' parameters as they start, `count` times."""
    for _ in range(count):
        yield twin.both(sizes)[2]
