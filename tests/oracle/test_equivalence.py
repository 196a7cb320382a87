"""Distributed = one process = dense, in outputs, loss, input gradient and every parameter gradient."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.oracle.cases import LAYERS, assemble, assert_same, expected, layers_for, worker
from tests.partitioning.drawn import cut_graphs, graph_of
from tests.workers import run_workers
from weft.aggregate import (
    MATERIALISED,
    OVERLAPPED,
    SEQUENTIAL,
    DistributedGraph,
    Schedule,
    format_named,
    order_for_overlap,
)
from weft.comm import all_reduce_gradients
from weft.layers import ModelConfig, build_model
from weft.partitioning import make_shards

NAMES = list(LAYERS)
slow = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)


PIECES = replace(OVERLAPPED, smallest_piece=1)  # in as many messages as there are with large graphs
SCHEDULES = {
    "materialised": MATERIALISED,
    "sequential": SEQUENTIAL,
    "no-prefetch": Schedule(rounds="each", keep="nothing", prefetch=0),
    "deep-prefetch": Schedule(rounds="each", keep="nothing", prefetch=5),
    "kept": Schedule(rounds="each", keep="rows", prefetch=2),
    "blocks": Schedule(rounds="each", keep="nothing", blocks=3),
    "overlapped": OVERLAPPED,
    "pieces": PIECES,
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def check(graph, owner, num_workers, dtype=torch.float64, schedule=MATERIALISED):
    names = layers_for(graph)
    shards = make_shards(graph, owner, num_workers)
    answers = run_workers(worker, num_workers, shards, names, dtype, "raw", schedule)
    for name in names:
        assert_same(assemble(answers, name, graph.num_nodes), expected(name, graph, dtype), name, dtype)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ["materialised", "overlapped", "pieces", "sequential"])
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


def stack_step(
    comm, shards, model, schedule, codec="raw", ordered=False, dtype=torch.float64, epochs=1, constant=False
):
    """Outputs and all gradients of a whole model, of this worker's rows; which of them are final when, both ways."""
    shard = shards[comm.worker]
    if ordered:
        shard = order_for_overlap(shard, comm)
    graph = DistributedGraph(shard.to(comm.device), comm, format_named(codec), schedule)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), 6, 4).to(comm.device, dtype)
    rows = torch.randn(shard.num_global_nodes, 6, generator=torch.Generator().manual_seed(1)).to(comm.device, dtype)
    probe = torch.randn(shard.num_global_nodes, 4, generator=torch.Generator().manual_seed(2)).to(comm.device, dtype)
    x = rows[graph.global_ids].requires_grad_(not constant)
    if constant:
        graph.hold_constant(x)
    for epoch in range(1, epochs + 1):
        graph.noise.begin(epoch)
        out = module(graph.view, x)
        module.zero_grad()
        x.grad = None
        (out * probe[graph.global_ids]).sum().backward()
    all_reduce_gradients(comm, module.parameters())
    grads = {f"d {name}": p.grad for name, p in module.named_parameters()}
    found = {"out": out.detach(), **grads} if constant else {"out": out.detach(), "d x": x.grad, **grads}
    return graph.global_ids, {"model": found}, graph.topology.final_rows, graph.topology.home_spans


@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        {"name": "gcn", "layers": 3, "hidden": 5},
        {"name": "gcn", "layers": 3, "hidden": 9, "activation": "elu"},
        {"name": "sage", "layers": 3, "hidden": 5},
        {"name": "sage", "layers": 4, "hidden": 8, "reduce": "sum"},
        {"name": "sage", "layers": 3, "hidden": 8, "reduce": "max"},
        {"name": "gat", "layers": 3, "hidden": 4, "heads": 2, "activation": "elu"},
        {"name": "gat", "layers": 3, "hidden": 4, "heads": 2},
        {"name": "gatv2", "layers": 3, "hidden": 4, "heads": 2},
        {"name": "gatv2", "layers": 3, "hidden": 4, "heads": 2, "activation": "elu"},
        {"name": "transformer", "layers": 3, "hidden": 4, "heads": 2},
        {"name": "gin", "layers": 3, "hidden": 6},
        {"name": "gcn", "layers": 3, "hidden": 5, "norm": "layer"},
        {"name": "sage", "layers": 3, "hidden": 5, "residual": True},
        {"name": "gcn", "layers": 2, "hidden": 5, "output": "linear"},
        {"name": "sage", "layers": 2, "hidden": 5, "output": "linear", "norm": "batch", "residual": True},
    ],
    ids=lambda model: "-".join(str(value) for value in model.values()),
)
def test_products_of_rows_that_are_there_while_others_travel(num_workers, directed, model):
    """Overlapped = materialised for whole models: products and activations done in two goes give the same."""
    generator = torch.Generator().manual_seed(9)
    near = torch.randint(0, 60, (160, 1), generator=generator)
    edges = torch.cat([near, (near + torch.randint(-3, 4, near.shape, generator=generator)) % 60], 1)
    edges = edges if directed else torch.cat([edges, edges.flip(1)])
    graph = graph_of(60, [tuple(edge) for edge in edges.tolist()], weighted=False)
    shards = make_shards(graph, (torch.arange(60) * num_workers // 60).int(), num_workers)
    for constant in (False, True):
        how = (torch.float64, 2, constant)
        plain = run_workers(stack_step, num_workers, shards, model, MATERIALISED, "raw", False, *how)
        overlapped = run_workers(stack_step, num_workers, shards, model, PIECES, "raw", True, *how)
        assert any(0 < final[0] < len(ids) for ids, _, final, _ in overlapped), "nobody had rows to work on meanwhile"
        if num_workers > 2:
            between = [any(final[0] < count < len(ids) for count in final) for ids, _, final, _ in overlapped]
            assert any(between), "nobody had any between arrivals"
            complete = [any(home[1:-1]) and any(home[-1:]) for _, _, _, home in overlapped]
            assert any(complete), "no gradient was complete between arrivals"
        assert any(home[0] for _, _, _, home in overlapped), "others read all rows"
        wanted = assemble([answer[:2] for answer in plain], "model", 60)
        assert_same(assemble([answer[:2] for answer in overlapped], "model", 60), wanted, "model", torch.float64)


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
