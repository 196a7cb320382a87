"""What is left to weft and changes what is learned: chosen alike by any number of workers, for any partition."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracle.test_minibatch import known_seeds
from tests.sample.cases import a_graph, set_up, spread
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.config import make_config
from weft.graph import open_graph
from weft.layers import ModelConfig, build_model
from weft.partitioning import Shard, assign, make_shards, whole_shard
from weft.run import start
from weft.sample import SampleConfig
from weft.sample.trial import caching_pays

DATA = Path(os.environ.get("WEFT_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
MODEL = {"name": "sage", "layers": 2, "hidden": 8}


def losses(comm: Communicator, shards: list[Shard], plan: Any, settings: dict[str, Any], steps: int) -> Any:
    """Whether aggregates are kept, and the losses of the first steps, the weights staying as they are."""
    shard = shards[comm.worker]
    graph, rows = DistributedGraph(shard, comm), known_seeds(shard)
    assert shard.x is not None and shard.y is not None
    x = shard.x.double()
    graph.hold_constant(x)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**MODEL), x.shape[1], shard.num_classes).double()
    setup = set_up(graph, module, x, rows, SampleConfig(**settings), plan, 1, 9)
    passes = setup.steps()
    found = []
    for step in passes.epoch(1):
        loss = step.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        if len(found) < steps:
            found.append(float(comm.all_reduce(loss.detach().view(1).clone(), "control", "loss")))
    passes.close()
    return setup.loader.described()["kept_aggregates"], found


@pytest.mark.parametrize(("batch", "kept"), [(16, True), (60, False)])
def test_whether_aggregates_are_kept_does_not_depend_on_placement(batch, kept):
    graph, settings = a_graph(200, 2000), {"batch": batch, "fanout": (3, 2)}
    ((chosen, wanted),) = run_workers(losses, 1, [whole_shard(graph)], "macrobatch", settings, 20)
    assert chosen is kept
    for plan in ("independent", "macrobatch", "split"):
        for num_workers, skewed in ((2, False), (2, True), (3, False), (3, True), (5, False)):
            shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
            for chosen, found in run_workers(losses, num_workers, shards, plan, settings, 20):
                assert chosen is kept
                assert found == pytest.approx(wanted, rel=1e-9)


def test_so_it_is_on_amazon_computers():
    """Where one worker kept none and two kept some, and learned other things."""
    if not (DATA / "amazon-computers.npz").exists():
        pytest.skip(f"amazon-computers.npz is not in {DATA}: set WEFT_TEST_DATA")
    graph = open_graph(DATA / "amazon-computers.npz")
    assert graph.x is not None
    graph = graph.with_vertex_data(x=graph.x[:, :16].contiguous())
    settings = {"batch": 1024, "fanout": (15, 10)}
    found = [run_workers(losses, 1, [whole_shard(graph)], "macrobatch", settings, 2)[0]]
    for num_workers, method in ((2, "stream"), (3, "random")):
        shards = make_shards(graph, assign(graph, num_workers, method, 0), num_workers)
        found.append(run_workers(losses, num_workers, shards, "macrobatch", settings, 2)[0])
    for (kept, one), (also_kept, other) in pairwise(found):
        assert kept is also_kept and one == pytest.approx(other, rel=1e-9)


def test_the_rule_is_about_minibatches():
    assert caching_pays(1000, 499, reads_own=True) and not caching_pays(1000, 500, reads_own=True)
    assert caching_pays(1000, 999, reads_own=False) and not caching_pays(1000, 1000, reads_own=False)


def test_a_resumed_run_keeps_what_auto_chose(tmp_path, monkeypatch):
    """Also where the config that it is resumed with says auto again: plans are not compared again."""
    settings = {
        "data": "synthetic:tiny", "run": str(tmp_path / "run"), "model": MODEL, "strategy": "auto", "threads": 1,
        "sample": {"batch": 64, "fanout": [5, 4]},
    }  # fmt: skip
    first = start(make_config({**settings, "train": {"epochs": 1}}), quiet=True).config
    assert first.strategy != "auto"

    def compared(*_: Any) -> None:
        raise AssertionError("plans are compared again")

    monkeypatch.setattr("weft.launch.worker.estimate_plans", compared)
    resumed = start(make_config({**settings, "train": {"epochs": 2}}), resume=True, quiet=True).config
    assert resumed == first.model_copy(update={"train": resumed.train}) and resumed.train.epochs == 2
