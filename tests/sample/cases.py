"""Graphs and planners for tests of minibatches."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.partition.drawn import graph_of
from weft.aggregate import GraphView
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.graph import Graph
from weft.layers import ModelConfig, build_model, replicated_parameters
from weft.partition import Shard
from weft.sample import Minibatches, Plan, SampleConfig
from weft.train.minibatches import make_minibatches, vertex_seeds
from weft.train.steps import Steps

FEATURES, CLASSES = 6, 4


def a_graph(num_nodes: int = 60, num_edges: int = 600, weighted: bool = False, seed: int = 5) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, num_nodes, (num_edges, 2), generator=generator).tolist()
    return graph_of(num_nodes, [tuple(edge) for edge in edges], weighted, features=FEATURES)


def spread(num_nodes: int, num_workers: int, skewed: bool = False) -> Tensor:
    """Who owns which vertex; skewed: the last worker owns nothing, the first nearly all."""
    draws = torch.rand(num_nodes, generator=torch.Generator().manual_seed(3))
    if skewed:
        return (draws * draws * draws * max(num_workers - 1, 1)).int()
    return (draws * num_workers).int()


def start(
    comm: Communicator,
    shard: Shard,
    rows: Tensor,
    model: dict[str, Any],
    dtype: torch.dtype = torch.float64,
    plan: Plan = "macrobatch",
    last_epoch: int = 2,
    **settings: Any,
) -> tuple[GraphView, Any, Tensor, Minibatches]:
    """A view, a model, its input and its minibatches, as a run makes them."""
    view = GraphView(shard, comm)
    assert shard.x is not None
    x = shard.x.to(dtype)
    view.hold_constant(x)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), FEATURES, CLASSES, view.num_relations).to(dtype)
    config = SampleConfig(**{"batch": 16, **settings})
    return (
        view,
        module,
        x,
        make_minibatches(
            view, module, config, plan, 9, last_epoch, x, vertex_seeds(rows, shard.global_ids, config.batch, 9)
        ),
    )


def train(
    comm: Communicator, steps: Steps, module: Any, epochs: int, optimiser: torch.optim.Optimizer | None = None
) -> Iterator[float]:
    """Goes through epochs step by step, and tells the loss of each; without an optimiser the weights stay."""
    for epoch in range(1, epochs + 1):
        for step in steps.epoch(epoch):
            module.zero_grad()
            loss = step.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            all_reduce_gradients(comm, replicated_parameters(module))
            if optimiser is not None:
                optimiser.step()
            yield float(comm.all_reduce(loss.detach().view(1).clone(), "control", "loss"))
    steps.close()
