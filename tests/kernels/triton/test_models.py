"""Whole models through the backend: outputs and gradients in float64, the cuts of long rows kept with the edges."""

from typing import Any

import pytest
import torch

from tests.kernels.triton.sides import DEVICE, close
from tests.partitioning.drawn import graph_of
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.kernels.backends import only
from weft.layers import ModelConfig, build_model
from weft.partitioning import whole_shard

MODELS = [
    {"name": "gcn", "layers": 2, "hidden": 3},
    {"name": "sage", "layers": 1, "reduce": "max"},
    {"name": "gat", "layers": 2, "hidden": 2, "heads": 2, "activation": "elu", "attention_dropout": 0.3},
    {"name": "gatv2", "layers": 1, "heads": 2},
    {"name": "transformer", "layers": 1, "heads": 2},
    {"name": "rgcn", "layers": 1},
]


def step(settings: dict[str, Any], device: str) -> list[torch.Tensor]:
    """The output of a training pass, the input's gradient and the parameters'."""
    edges = [(source, 0) for source in range(7)] + [(0, target) for target in range(1, 9)] + [(3, 4), (4, 3), (5, 3)]
    graph = graph_of(9, edges, False)
    shard = whole_shard(graph, reorder=False).to(torch.device(device))
    distributed = DistributedGraph(shard, Communicator.alone(device))
    torch.manual_seed(0)
    model = build_model(ModelConfig(**settings, dropout=0.4), 3, 2, graph.num_relations).to(device).double()
    x = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    distributed.noise.begin(1)
    out = model(distributed.view, x)
    out.square().sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("settings", MODELS, ids=lambda each: each["name"])
def test_a_model_equals_the_reference(settings: dict[str, Any]) -> None:
    ours = step(settings, DEVICE)
    with only("reference"):
        theirs = step(settings, "cpu")
    close(ours, theirs, rtol=1e-9, atol=1e-12)
