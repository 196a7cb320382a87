"""Runs of a small graph through a pipeline of intervals, and as one pass over the whole graph."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.partitioning.drawn import graph_of
from weft.aggregate import DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.assemble import Connections, Vertices, assemble
from weft.graph.typedrows import Rows
from weft.layers import ModelConfig, Separable, Stack, build_model
from weft.partitioning import Shard, make_shards
from weft.serverless.executor import PipelineExecutor
from weft.serverless.invoker import Invoker, Usage
from weft.serverless.invokers import make_invoker
from weft.serverless.settings import ExecutorConfig
from weft.training.loss import GlobalLoss
from weft.training.objective import input_rows
from weft.training.optim import OptimConfig, build_optimiser, learning_rate
from weft.training.settings import TrainConfig
from weft_function.handler import handle
from weft_function.task import Request, Response

FEATURES, CLASSES = 5, 3
WIDTHS = (4, 6, 1)  # of the features of types


class Averaging(Separable):
    """A user's layer without a function of edges."""

    reduce = "mean"
    before_weights = ("weight",)
    after_weights = ("root", "shift")

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.num_out = self.num_sent = num_out
        self.weight = nn.Parameter(torch.randn(num_in, num_out) * 0.5)
        self.root = nn.Parameter(torch.randn(num_in, num_out) * 0.5)
        self.shift = nn.Parameter(torch.randn(num_out) * 0.1)

    @staticmethod
    def before(x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(x @ weight)

    @staticmethod
    def after(gathered: Tensor, x: Tensor, root: Tensor, shift: Tensor) -> Tensor:
        return gathered + x @ root + shift


class Gated(Separable):
    """A user's layer whose edges have a function with weights of its own: two heads."""

    heads = 2
    before_weights = ("weight",)
    edge_weights = ("gate", "scale")

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.num_out = self.num_sent = 2 * num_out
        self.weight = nn.Parameter(torch.randn(num_in, 2 * num_out) * 0.5)
        self.gate = nn.Parameter(torch.randn(2 * num_out, 2) * 0.5)
        self.scale = nn.Parameter(torch.tensor([1.5, 0.5]))

    @staticmethod
    def before(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    @staticmethod
    def edge(source: Tensor, target: Tensor, gate: Tensor, scale: Tensor) -> Tensor:
        return torch.tanh((source + 0.5 * target) @ gate) * scale


@dataclass(frozen=True)
class Case:
    model: ModelConfig
    multi_label: bool = False
    aggregates_input: bool = True
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=0.05))
    class_weights: str = "none"
    own: bool = False
    dtype: torch.dtype = torch.float64
    types: bool = False  # of vertices: an encoder stands before the layers


_BASE = ModelConfig(name="gcn", layers=2, hidden=4, dropout=0.0)
CASES = {
    "gcn": Case(_BASE),
    "gcn-three": Case(_BASE.model_copy(update={"layers": 3, "dropout": 0.4})),
    "gcn-wide": Case(_BASE.model_copy(update={"hidden": 7, "residual": True}), aggregates_input=False),
    "gcn-one": Case(_BASE.model_copy(update={"layers": 1})),
    "sage": Case(_BASE.model_copy(update={"name": "sage", "dropout": 0.3, "norm": "layer"})),
    "sage-residual": Case(_BASE.model_copy(update={"name": "sage", "hidden": 6, "residual": True, "reduce": "sum"})),
    "sage-wide": Case(_BASE.model_copy(update={"name": "sage", "layers": 3, "hidden": 7}), aggregates_input=False),
    "gat": Case(_BASE.model_copy(update={"name": "gat", "heads": 3, "activation": "elu", "dropout": 0.2})),
    "gat-three": Case(_BASE.model_copy(update={"name": "gat", "heads": 2, "output_heads": 2, "layers": 3})),
    "gat-residual": Case(_BASE.model_copy(update={"name": "gat", "heads": 2, "residual": True})),
    "gcn-linear": Case(_BASE.model_copy(update={"output": "linear", "dropout": 0.3, "norm": "layer"})),
    "gat-linear": Case(_BASE.model_copy(update={"name": "gat", "heads": 2, "output": "linear", "residual": True})),
    "labels": Case(_BASE, multi_label=True, class_weights="balanced"),
    "balanced": Case(_BASE, class_weights="balanced", optim=OptimConfig(name="sgd", lr=0.1, clip_norm=0.05)),
    "separable": Case(_BASE.model_copy(update={"dropout": 0.3}), own=True),
    "types-gcn": Case(_BASE.model_copy(update={"dropout": 0.3, "residual": True}), types=True),
    "types-sage": Case(_BASE.model_copy(update={"name": "sage", "hidden": 7, "norm": "layer"}), types=True),
    "types-gat": Case(_BASE.model_copy(update={"name": "gat", "heads": 2, "output": "linear"}), types=True),
    "types-one": Case(_BASE.model_copy(update={"name": "sage", "layers": 1, "reduce": "sum"}), types=True),
}


def build(case: Case) -> nn.Module:
    torch.manual_seed(5)
    if case.own:
        layers: list[nn.Module] = [Averaging(FEATURES, 4), Gated(4, 3), Averaging(6, CLASSES)]
        model: nn.Module = Stack(layers, case.model, [FEATURES, 4, 6, CLASSES])
    elif case.types:
        model = build_model(case.model, case.model.hidden, CLASSES, type_widths=WIDTHS)
    else:
        model = build_model(case.model, FEATURES, CLASSES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.to(case.dtype)


def some_shards(num_workers: int, num_nodes: int = 40, num_edges: int = 200, skewed: bool = True) -> list[Shard]:
    """A directed graph; one worker has much more of it than others."""
    generator = torch.Generator().manual_seed(num_workers)
    edges = torch.randint(0, num_nodes, (num_edges, 2), generator=generator).tolist()
    graph = graph_of(num_nodes, [tuple(edge) for edge in edges], weighted=False)
    span = 2 * num_workers if skewed else num_workers
    owner = torch.randint(0, span, (num_nodes,), generator=generator).clamp(max=num_workers - 1)
    return make_shards(graph, owner.int(), num_workers)


def shards_for(case: Case, num_workers: int) -> list[Shard]:
    return typed_shards(num_workers) if case.types else some_shards(num_workers)


def typed_shards(num_workers: int) -> list[Shard]:
    """Vertices of three types with features of different widths, spread over workers; intervals lack some types."""
    generator = torch.Generator().manual_seed(num_workers)
    sizes = {"a": 25, "b": 3, "c": 12}
    nodes = {
        kind: Vertices(size, torch.randn(size, width, generator=generator))
        for (kind, size), width in zip(sizes.items(), WIDTHS, strict=True)
    }
    edges = {}
    for source, destination in (("a", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")):
        ends = [torch.randint(0, sizes[kind], (40,), generator=generator) for kind in (source, destination)]
        edges[source, "to", destination] = Connections(torch.stack(ends))
    graph = assemble(nodes, edges, "typed", {})
    owner = torch.randint(0, 2 * num_workers, (graph.num_nodes,), generator=generator).clamp(max=num_workers - 1)
    return make_shards(graph, owner.int(), num_workers)


def data(shard: Shard, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets and training rows of one worker."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shard.num_global_nodes, FEATURES, generator=generator, dtype=torch.float64)
    if case.multi_label:
        y = torch.randint(-1, 2, (shard.num_global_nodes, CLASSES), generator=generator)
    else:
        y = torch.randint(0, CLASSES, (shard.num_global_nodes,), generator=generator)
    trains = torch.rand(shard.num_global_nodes, generator=generator) < 0.6
    ids = shard.global_ids
    return x[ids].to(case.dtype), y[ids], trains[ids].nonzero().squeeze(1)


def whole_pass(comm: Communicator, shards: list[Shard], case: Case, epochs: int) -> dict[str, Any]:
    """The same epochs as one pass over the whole graph each."""
    graph, model, x, loss_of = _set_up(comm, shards, case)
    optimiser = build_optimiser(case.optim, model)
    if case.aggregates_input and isinstance(x, Tensor):
        graph.hold_constant(x)
    losses = []
    for epoch in range(1, epochs + 1):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(case.optim, epoch, epochs)
        optimiser.zero_grad()
        graph.noise.begin(epoch)
        loss = loss_of(model(graph.view, x))
        loss.backward()
        all_reduce_gradients(comm, model.parameters())
        if case.optim.clip_norm is not None:
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad *= min(1.0, case.optim.clip_norm / float(norm))
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimiser.step()
        losses.append(float(comm.all_reduce(loss.detach().double().view(1), "control", "loss")))
    return {"losses": losses, "weights": _weights(model), "gradients": gradients}


def pipelined(
    comm: Communicator,
    shards: list[Shard],
    case: Case,
    epochs: int,
    config: ExecutorConfig,
    make: Any = None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    graph, model, x, loss_of = _set_up(comm, shards, case)
    optimiser = build_optimiser(case.optim, model)
    run = PipelineExecutor(graph, model, x, loss_of, config, case.optim, 0, epochs, case.aggregates_input, make=make)
    run.start(optimiser, 0)
    try:
        records = [run.epoch(epoch) for epoch in range(1, (stop_after or epochs) + 1)]
    finally:
        run.close()
    return {
        "losses": [record["train_loss"] for record in records],
        "norms": [record["grad_norm"] for record in records],
        "weights": _weights(model),
        "usage": records[-1]["functions"],
        "waste": vars(run.server.waste),
        "sent": dict(comm.sent),
        "exact_from": run.server.schedule.exact_from,
        "faults": getattr(run.invoker, "faults", 0),
    }


class Delayed:
    """Does tasks in threads, some of them late: those of some servers and intervals, each with a chance."""

    name = "delayed"

    def __init__(self, faults: "Faults") -> None:
        self._plan, self._rng, self.faults = faults, random.Random(faults.seed), 0

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        future: Future[Response] = Future()
        plan, answer, seconds = self._plan, handle(request, "delayed"), 0.0
        hit = plan.servers is None or request.id.server in plan.servers
        if (
            hit
            and (plan.intervals is None or request.id.interval in plan.intervals)
            and self._rng.random() < plan.chance
        ):
            seconds, self.faults = plan.seconds * self._rng.random(), self.faults + 1
        timer = threading.Timer(seconds, lambda: future.set_result(answer))
        timer.daemon = True
        timer.start()
        return future

    def scale(self, workers: int) -> None: ...

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


@dataclass(frozen=True)
class Faults:
    """Which tasks are late, by up to how much. Called, it makes a run's invoker."""

    seconds: float
    chance: float = 1.0
    servers: tuple[int, ...] | None = None  # None: all
    intervals: tuple[int, ...] | None = None
    seed: int = 0

    def __call__(self, config: ExecutorConfig, trust: Any) -> Delayed:
        return Delayed(self)


class Killing:
    """Makes a run's invoker, and ends its processes with SIGKILL at random points while the run goes on."""

    def __init__(self, kills: int, tasks_between: int) -> None:
        self.kills, self._wanted, self._tasks_between = 0, kills, tasks_between
        self.invoker: Invoker | None = None

    def make(self, config: ExecutorConfig, trust: Any) -> Invoker:
        self.invoker = make_invoker(config, trust)
        return self.invoker

    @contextmanager
    def during(self, processes: Callable[[], list[int]]) -> Iterator[None]:
        done, rng = threading.Event(), random.Random(3)

        def kill() -> None:
            # Short pauses: tasks, not seconds, lie between two kills, or a fast machine would run out of tasks first.
            while self.kills < self._wanted and not done.wait(rng.random() * 0.05):
                alive = processes() if self.invoker is not None else []
                if alive and self.invoker.usage().tasks > self._tasks_between * self.kills:
                    os.kill(rng.choice(alive), signal.SIGKILL)
                    self.kills += 1

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _set_up(
    comm: Communicator, shards: list[Shard], case: Case
) -> tuple[DistributedGraph, nn.Module, Rows, GlobalLoss]:
    graph = DistributedGraph(shards[comm.worker], comm)
    graph.noise.seed = 0
    features, y, rows = data(graph.shard, case)
    x: Rows = features
    model = build(case).train()
    if case.types:
        x = input_rows(graph, model, TrainConfig(precision="float64", cache_input=False))
    loss_of = GlobalLoss(y, rows, CLASSES, case.class_weights, comm)  # type: ignore[arg-type]
    return graph, model, x, loss_of


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}
