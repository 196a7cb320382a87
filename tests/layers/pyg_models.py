"""Models of PyG's convolutions: weft's Stack of them, and the same in plain PyG over the whole graph."""

from typing import Any

import torch
import torch_geometric.nn as pyg  # whoever imports this has asked whether it is installed
from torch import Tensor, nn

from tests.partitioning.drawn import RELATIONS, graph_of
from tests.sample.cases import FEATURES
from weft.graph.graph import Graph
from weft.layers import ModelConfig, Stack
from weft.layers.pyg import Convolution

HIDDEN, EDGE_FEATURES = 8, 2


def convolution(kind: str, num_in: int, num_out: int) -> nn.Module:
    made: dict[str, Any] = {
        "sage": lambda: pyg.SAGEConv(num_in, num_out),
        "gat": lambda: pyg.GATConv(num_in, num_out // 2, heads=2),
        "gatv2": lambda: pyg.GATv2Conv(num_in, num_out // 2, heads=2, edge_dim=EDGE_FEATURES),
        "gin": lambda: pyg.GINConv(_mlp(num_in, num_out)),
        "gine": lambda: pyg.GINEConv(_mlp(num_in, num_out), edge_dim=EDGE_FEATURES),
        "transformer": lambda: pyg.TransformerConv(num_in, num_out // 2, heads=2, edge_dim=EDGE_FEATURES),
        "rgcn": lambda: pyg.RGCNConv(num_in, num_out, RELATIONS),
        "graph": lambda: pyg.GraphConv(num_in, num_out),
        "gcn": lambda: pyg.GCNConv(num_in, num_out),
        "gcnplain": lambda: pyg.GCNConv(num_in, num_out, normalize=False),
        "tag": lambda: pyg.TAGConv(num_in, num_out),
    }
    return made[kind]()


def _mlp(num_in: int, num_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_in, num_out), nn.ReLU(), nn.Linear(num_out, num_out))


BLOCKWISE = ("sage", "gat", "gatv2", "gin", "gine", "transformer", "rgcn", "graph", "gcn", "gcnplain")
WEIGHTED = ("graph", "gcn", "gcnplain")  # take edge weights


def build(num_in: int, num_out: int, config: ModelConfig) -> Stack:
    """What `tests.layers.pyg_models:build_KIND` names."""
    kind = config.name.rpartition("_")[2]
    layers = [Convolution(convolution(kind, num_in, HIDDEN)), Convolution(convolution(kind, HIDDEN, num_out))]
    return Stack(layers, config, [num_in, HIDDEN, num_out])


for _kind in (*BLOCKWISE, "tag"):
    globals()[f"build_{_kind}"] = build


def config_of(kind: str, **more: Any) -> dict[str, Any]:
    return {"name": f"tests.layers.pyg_models:build_{kind}", "layers": 2, **more}


def drawn(kind: str, num_nodes: int = 60, num_edges: int = 500) -> Graph:
    """At most one loop at a vertex: of several PyG keeps one by no rule."""
    pairs = torch.randint(0, num_nodes, (num_edges, 2), generator=torch.Generator().manual_seed(5)).unique(dim=0)
    edges = [tuple(pair) for pair in pairs.tolist()]
    edges += [(source, target) for source, target in edges[::7] if source != target]
    return graph_of(num_nodes, edges, kind in WEIGHTED, features=FEATURES)  # type: ignore[arg-type]


def edge_index(graph: Graph) -> Tensor:
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.adjacency.degrees())
    return torch.stack([graph.adjacency.indices.long(), targets])


def in_plain_pyg(model: Stack, kind: str, graph: Graph) -> Tensor:
    """The logits of PyG itself, with the model's own convolutions, over the whole graph."""
    csr, more = graph.adjacency, {}
    if kind in WEIGHTED:
        assert csr.weight is not None
        more["edge_weight"] = csr.weight.double()
    if kind == "rgcn":
        assert csr.relation is not None
        more["edge_type"] = csr.relation.long()
    if kind in ("gatv2", "gine", "transformer"):
        assert csr.features is not None
        more["edge_attr"] = csr.features.double()
    assert graph.x is not None
    first, last = (layer.convolution for layer in model.layers)
    rows = torch.relu(first(graph.x.double(), edge_index(graph), **more))
    out: Tensor = last(rows, edge_index(graph), **more)
    return out
