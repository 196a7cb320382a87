"""Graphs and loaders for tests of minibatches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tests.partitioning.drawn import graph_of
from weft.aggregate import DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.graph import Graph
from weft.layers import ModelConfig, build_model, replicated_parameters
from weft.partitioning import Shard
from weft.sample import MacrobatchLoader, PartitionBook, Plan, SampleConfig, VertexSource
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.steps import Steps, VertexSteps

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


@dataclass
class Setup:
    """A graph, a model, its input and its minibatches, as a run makes them."""

    graph: DistributedGraph
    model: Any
    x: Tensor
    rows: Tensor  # the seeds, own rows
    book: PartitionBook
    source: VertexSource
    loader: MacrobatchLoader

    def steps(self, class_weights: Literal["none", "balanced"] = "none") -> VertexSteps:
        shard = self.graph.shard
        assert shard.y is not None
        loss_of = GlobalLoss(shard.y, self.rows, shard.num_classes, class_weights, self.graph.comm)
        return VertexSteps(self.graph, self.model, self.loader, self.source, shard.y, loss_of)


def set_up(
    graph: DistributedGraph,
    model: Any,
    x: Tensor,
    rows: Tensor,
    config: SampleConfig,
    plan: Plan,
    last_epoch: int,
    seed: int,
) -> Setup:
    book = PartitionBook(graph.shard, graph.comm)
    source = VertexSource(rows, graph.global_ids, config.batch, seed, graph.comm, book.own.start)
    loader = make_loader(graph, model, x, source, book, config, plan, seed, last_epoch)
    return Setup(graph, model, x, rows, book, source, loader)


def start(
    comm: Communicator,
    shard: Shard,
    rows: Tensor,
    model: dict[str, Any],
    dtype: torch.dtype = torch.float64,
    plan: Plan = "macrobatch",
    last_epoch: int = 2,
    **settings: Any,
) -> Setup:
    graph = DistributedGraph(shard, comm)
    assert shard.x is not None
    x = shard.x.to(dtype)
    graph.hold_constant(x)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), FEATURES, CLASSES, graph.num_relations).to(dtype)
    config = SampleConfig(**{"batch": 16, **settings})
    return set_up(graph, module, x, rows, config, plan, last_epoch, 9)


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
