"""Runs whose intervals go ahead of each other: the same bits whatever is late, and trained like those in order."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.partitioning.drawn import graph_of
from tests.serverless.cases import CASES, Case, Faults, pipelined, some_shards
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import open_graph
from weft.layers import ModelConfig, build_model
from weft.partitioning import Shard, assign, make_shards
from weft.serverless.executor import PipelineExecutor
from weft.serverless.schedule import STEADY_EPOCHS
from weft.serverless.settings import ExecutorConfig
from weft.training.evaluate import predict
from weft.training.loss import GlobalLoss
from weft.training.optim import OptimConfig, build_optimiser

EPOCHS = STEADY_EPOCHS + 4


def falling(name: str) -> Case:
    """Its loss falls from the first epoch on, so that later ones are not exact."""
    case = CASES[name]
    return replace(case, optim=case.optim.model_copy(update={"lr": 0.005}))


def same(one, other) -> bool:  # type: ignore[no-untyped-def]
    weights = all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    return one["losses"] == other["losses"] and weights


@pytest.mark.parametrize("name", ["sage", "gat", "separable"])
def test_the_same_bits_whatever_is_late(name: str) -> None:
    """Delays of all tasks, of one server, of one interval: drawn, and counted."""
    shards, case = some_shards(2), falling(name)
    config = ExecutorConfig(intervals=4, staleness=0)
    wanted = run_workers(pipelined, 2, shards, case, EPOCHS, config)
    exact = run_workers(pipelined, 2, shards, case, EPOCHS, ExecutorConfig(intervals=4))
    assert wanted[0]["losses"][:STEADY_EPOCHS] == exact[0]["losses"][:STEADY_EPOCHS]
    assert wanted[0]["losses"] != exact[0]["losses"]  # rows of the epoch before were read
    for faults in (
        Faults(0.004, chance=0.5, seed=1),
        Faults(0.03, chance=0.3, servers=(1,), seed=2),
        Faults(0.05, intervals=(3,), seed=3),
    ):
        found = run_workers(pipelined, 2, shards, case, EPOCHS, config, faults)
        assert same(wanted[0], found[0]) and same(wanted[1], found[1]), faults
        assert sum(one["faults"] for one in found) > 20


def test_a_larger_bound_allows_the_same() -> None:
    shards, case = some_shards(2), falling("gcn-three")
    runs = [
        run_workers(pipelined, 2, shards, case, EPOCHS, ExecutorConfig(intervals=4, staleness=bound), make)
        for bound, make in ((0, None), (2, Faults(0.01, seed=4)))
    ]
    assert same(runs[0][0], runs[1][0])


# -- training ----------------------------------------------------------------------------------------------------------

DATA = Path(os.environ.get("WEFT_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
CLASSES, WORDS, TRAINED, REAL_EPOCHS = 6, 300, 40, 60


def texts(num_workers: int, nodes: int = 600, seed: int = 0) -> list[Shard]:
    """Vertices of some classes with counts of words, most of which all classes use: features are far from centred."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, nodes)
    likely = rng.random((CLASSES, WORDS)) * 0.4 + 0.2
    x = (rng.random((nodes, WORDS)) < likely[y]).astype(np.float32)
    ends = rng.integers(0, nodes, (20 * nodes, 2))
    kept = ends[(y[ends[:, 0]] == y[ends[:, 1]]) | (rng.random(len(ends)) < 0.1)]
    edges = [tuple(edge) for edge in np.concatenate([kept, kept[:, ::-1]]).tolist()]
    graph = graph_of(nodes, edges, weighted=False)
    split = torch.from_numpy(rng.random(nodes))
    masks = {"train_mask": split < 0.5, "test_mask": split >= 0.5}
    graph = graph.with_vertex_data(x=torch.from_numpy(x), y=torch.from_numpy(y), **masks)
    owner = torch.from_numpy(rng.integers(0, num_workers, nodes)).int()
    return make_shards(replace(graph, num_classes=CLASSES), owner, num_workers)


def trained(
    comm: Communicator, shards: list[Shard], config: ExecutorConfig, epochs: int, seed: int, faults: Faults | None
) -> tuple[float, int]:
    """Right answers among test vertices of this worker after training, in per cent of all; faults."""
    graph = DistributedGraph(shards[comm.worker], comm)
    graph.noise.seed = seed
    shard = graph.shard
    assert shard.x is not None and shard.y is not None and shard.train_mask is not None
    torch.manual_seed(seed)
    model = build_model(ModelConfig(name="gcn", layers=2, hidden=32), shard.x.shape[1], shard.num_classes)
    graph.hold_constant(shard.x)
    loss_of = GlobalLoss(shard.y, shard.train_mask.nonzero().squeeze(1), shard.num_classes, "none", comm)
    optim = OptimConfig(lr=0.01)
    run = PipelineExecutor(graph, model, shard.x, loss_of, config, optim, seed, epochs, True, make=faults)
    run.start(build_optimiser(optim, model), 0)
    try:
        for epoch in range(1, epochs + 1):
            run.epoch(epoch)
    finally:
        run.close()
    right = predict(model, graph, shard.x).argmax(1) == shard.y
    counts: Tensor = torch.stack([right[shard.test_mask].sum(), shard.test_mask.sum()]).double()
    comm.all_reduce(counts, "control", "right answers")
    return float(100 * counts[0] / counts[1]), getattr(run.invoker, "faults", 0)


@pytest.fixture(scope="module")
def in_order() -> float:
    """Accuracy of runs whose epochs are all exact."""
    config = ExecutorConfig(intervals=8)
    return float(np.mean([run_workers(trained, 2, texts(2), config, TRAINED, seed, None)[0][0] for seed in range(2)]))


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_trains_like_a_run_in_order(staleness: int, in_order: float) -> None:
    """Within a point in the mean of two seeds, where one worker's tasks are late and the loss rises at first."""
    faults = Faults(0.01, servers=(1,), seed=5)
    config = ExecutorConfig(intervals=8, staleness=staleness)
    found = [run_workers(trained, 2, texts(2), config, TRAINED, seed, faults) for seed in range(2)]
    assert all(workers[1][1] > 500 for workers in found)
    assert in_order > 90
    assert np.mean([workers[0][0] for workers in found]) > in_order - 1


def test_so_it_does_on_amazon_computers() -> None:
    """Three workers, of which one is late: there, 46 per cent were right where timing chose which rows were read."""
    if not (DATA / "amazon-computers.npz").exists():
        pytest.skip(f"amazon-computers.npz is not in {DATA}: set WEFT_TEST_DATA")
    graph = open_graph(DATA / "amazon-computers.npz")
    shards = make_shards(graph, assign(graph, 3, "stream", 0), 3)
    faults = Faults(0.01, servers=(1,), seed=6)
    pipe, _ = run_workers(trained, 3, shards, ExecutorConfig(intervals=8), REAL_EPOCHS, 0, None)[1]
    stale, late = run_workers(trained, 3, shards, ExecutorConfig(intervals=8, staleness=1), REAL_EPOCHS, 0, faults)[1]
    assert late > 500 and pipe > 75 and stale > pipe - 1
