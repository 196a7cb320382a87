"""Distributed = one process = dense, in outputs, loss, input gradient and every parameter gradient."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.oracle.cases import LAYERS, assemble, assert_same, expected, layers_for, worker
from tests.partition.drawn import cut_graphs, graph_of
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, SEQUENTIAL, Schedule
from weft.partition import make_shards

NAMES = list(LAYERS)
slow = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)


SCHEDULES = {
    "materialised": MATERIALISED,
    "sequential": SEQUENTIAL,
    "no-prefetch": Schedule(rounds="each", keep="nothing", prefetch=0),
    "deep-prefetch": Schedule(rounds="each", keep="nothing", prefetch=5),
    "kept": Schedule(rounds="each", keep="rows", prefetch=2),
    "blocks": Schedule(rounds="each", keep="nothing", blocks=3),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def check(graph, owner, num_workers, dtype=torch.float64, schedule=MATERIALISED):
    names = layers_for(graph)
    shards = make_shards(graph, owner, num_workers)
    answers = run_workers(worker, num_workers, shards, names, dtype, "raw", schedule)
    for name in names:
        assert_same(assemble(answers, name, graph.num_nodes), expected(name, graph, dtype), name, dtype)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ["materialised", "sequential"])
def test_drawn_graphs(num_workers, schedule):
    @slow
    @given(cut_graphs(max_parts=num_workers))
    def run(cut):
        graph, owner, _ = cut
        if graph.num_nodes:
            check(graph, owner, num_workers, schedule=SCHEDULES[schedule])

    run()


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@every_schedule
def test_denser_graph(num_workers, dtype, schedule):
    """A graph large enough that every worker needs rows of every other, and one worker is much larger."""
    if dtype == torch.float32 and schedule not in (MATERIALISED, SEQUENTIAL):
        pytest.skip("one schedule of each kind is enough in float32")
    generator = torch.Generator().manual_seed(num_workers)
    edges = torch.randint(0, 40, (300, 2), generator=generator).tolist()
    graph = graph_of(40, [tuple(edge) for edge in edges], weighted=False)
    owner = torch.minimum(torch.randint(0, 2 * num_workers, (40,), generator=generator), torch.tensor(num_workers - 1))
    check(graph, owner.int(), num_workers, dtype, schedule=schedule)


@every_schedule
def test_one_vertex(schedule):
    check(graph_of(1, [], False), torch.zeros(1, dtype=torch.int32), 2, schedule=schedule)
    check(graph_of(1, [(0, 0), (0, 0)], True), torch.ones(1, dtype=torch.int32), 2, schedule=schedule)


def test_the_comparison_can_fail():
    """A single edge that one side lacks is seen in the output and in the gradients of every layer."""
    graph = graph_of(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)], False)
    other = graph_of(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (4, 0)], False)
    owner = torch.tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32)
    answers = run_workers(worker, 2, make_shards(graph, owner, 2), NAMES, torch.float64)
    for name in NAMES:
        with pytest.raises(AssertionError):
            assert_same(assemble(answers, name, 6), expected(name, other, torch.float64), name, torch.float64)
