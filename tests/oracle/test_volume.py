"""Counted payload equals the formula, by class; adjointness of every linear aggregation; placement invariance."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, SEQUENTIAL, DistributedGraph, Schedule, format_named
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.graph import Graph
from weft.layers import ModelConfig, build_model
from weft.layers.registry import layer_names
from weft.partitioning import Shard, make_shards, whole_shard

WORKERS = [1, 2, 3, 4, 8]


def a_graph(num_nodes: int = 30, num_edges: int = 200, weighted: bool = False) -> Graph:
    generator = torch.Generator().manual_seed(5)
    edges = torch.randint(0, num_nodes, (num_edges, 2), generator=generator).tolist()
    return graph_of(num_nodes, [tuple(edge) for edge in edges], weighted, features=6)


def spread(num_nodes: int, num_workers: int) -> Tensor:
    return torch.randint(0, num_workers, (num_nodes,), generator=torch.Generator().manual_seed(3)).int()


def step_bytes(
    comm: Communicator, shards: list[Shard], model: dict[str, Any], codec: str, schedule: Schedule = MATERIALISED
) -> Any:
    """One training step; the bytes by class and what the formula needs: halo rows and the model's widths."""
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named(codec), schedule)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), 6, 4, graph.num_relations).to(comm.device)
    assert graph.shard.x is not None
    graph.hold_constant(graph.shard.x)
    for epoch in (1, 2):  # the first also aggregates the constant input
        before = dict(comm.sent)
        graph.noise.begin(epoch)
        module(graph.view, graph.shard.x).sum().backward()
        all_reduce_gradients(comm, module.parameters())
        sent = {kind: comm.sent[kind] - before[kind] for kind in comm.sent}
        if epoch == 1:
            first = sent
    gradients = sum(p.numel() * p.element_size() for p in module.parameters())
    return graph.shard.num_halo, first, sent, gradients


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(("codec", "size"), [("raw", 4), ("bf16", 2)])
@pytest.mark.parametrize(
    ("model", "cached", "forward", "backward"),
    [
        # columns on the wire: of the cached input, of each later epoch forward and backward
        ({"name": "gcn", "layers": 2, "hidden": 8}, 6, 4, 4),  # 8 -> 4: the narrow side travels
        ({"name": "gcn", "layers": 3, "hidden": 3}, 6, 3 + 3, 3 + 3),  # 3 -> 4 widens: rows of 3 travel
        ({"name": "sage", "layers": 2, "hidden": 8}, 6, 4, 4),
        ({"name": "sage", "layers": 2, "hidden": 8, "reduce": "max"}, 6, 8, 8),
        ({"name": "gin", "layers": 1, "hidden": 8}, 6, 0, 0),
        ({"name": "rgcn", "layers": 2, "hidden": 8}, 6, 8, 8),  # once, for all relations
        ({"name": "gat", "layers": 2, "hidden": 2, "heads": 3}, 0, 6 + 3 + 4 + 1, 6 + 3 + 4 + 1),  # values and logits
        ({"name": "gatv2", "layers": 2, "hidden": 2, "heads": 3}, 0, 6 + 4, 6 + 4),
        ({"name": "transformer", "layers": 2, "hidden": 2, "heads": 3}, 0, 2 * (6 + 4), 2 * (6 + 4)),  # keys and values
    ],
    ids=["gcn-narrow", "gcn-wide", "sage", "sage-max", "gin", "rgcn", "gat", "gatv2", "transformer"],
)
def test_bytes_equal_the_formula(num_workers, codec, size, model, cached, forward, backward):
    if codec != "raw" and model.get("reduce") == "max":
        pytest.skip("refused: a maximum of rounded rows is biased")
    graph = a_graph()
    answers = run_workers(
        step_bytes, num_workers, make_shards(graph, spread(30, num_workers), num_workers), model, codec
    )
    halo = sum(answer[0] for answer in answers)
    assert (halo > 0) == (num_workers > 1)

    # What worker p sends is what others hold of it, so only the sums over the workers have a formula in halo sizes.
    def total(which: int, kind: str) -> int:
        return sum(answer[which][kind] for answer in answers)

    batch_statistics = 0
    if model["name"] == "gin" and num_workers > 1:  # mean and variance, forward and backward, of 4 columns
        batch_statistics = num_workers * 2 * 4 * 4
    assert total(1, "features") == halo * cached * 4  # sent once, and as they are
    assert total(2, "features") == 0
    for which in (1, 2):
        assert total(which, "hidden_forward") == halo * forward * size + batch_statistics
        assert total(which, "hidden_backward") == halo * backward * size + batch_statistics
        assert total(which, "gradients") == (num_workers * answers[0][3] if num_workers > 1 else 0)


PACKED = Schedule(rounds="each", keep="packed")


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize(
    ("model", "columns", "reads_again"),
    [
        ({"name": "gcn", "layers": 2, "hidden": 8}, 4, False),
        ({"name": "sage", "layers": 2, "hidden": 8}, 4, False),
        ({"name": "sage", "layers": 2, "hidden": 8, "reduce": "max"}, 8, True),
        ({"name": "gat", "layers": 2, "hidden": 2, "heads": 3}, 6 + 3 + 4 + 1, True),
        ({"name": "gatv2", "layers": 2, "hidden": 2, "heads": 3}, 6 + 4, True),
    ],
    ids=["gcn", "sage", "sage-max", "gat", "gatv2"],
)
def test_sequential_sends_linear_rows_twice_and_others_three_times(num_workers, model, columns, reads_again):
    """2V where the backward pass does not read the rows or has kept them packed, 3V where it fetches them again."""
    shards = make_shards(a_graph(), spread(30, num_workers), num_workers)
    cases = [("raw", 4, SEQUENTIAL, 2 if reads_again else 1)]
    if model.get("reduce") != "max":
        cases += [("bf16", 2, SEQUENTIAL, 2 if reads_again else 1), ("bf16", 2, PACKED, 1)]
    for codec, size, schedule, forward_times in cases:
        answers = run_workers(step_bytes, num_workers, shards, model, codec, schedule)
        volume = sum(answer[0] for answer in answers) * columns * size
        assert volume > 0
        assert sum(answer[2]["hidden_forward"] for answer in answers) == forward_times * volume
        assert sum(answer[2]["hidden_backward"] for answer in answers) == volume


def no_source(comm: Communicator, shards: list[Shard]) -> int:
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, schedule=SEQUENTIAL)
    scale = torch.ones(3, device=comm.device, requires_grad=True)
    assert graph.shard.x is not None
    x = graph.shard.x[:, :3].clone().requires_grad_()
    graph.view.message(lambda edges: edges.dst * scale, x, reduce="sum").sum().backward()
    assert scale.grad is not None and x.grad is not None and bool(x.grad.any())
    return sum(comm.sent[kind] for kind in ("hidden_forward", "hidden_backward", "features"))


def test_messages_that_do_not_read_the_source_cost_nothing():
    assert run_workers(no_source, 3, make_shards(a_graph(), spread(30, 3), 3)) == [0, 0, 0]


def packed_equals_fetched(comm: Communicator, shards: list[Shard]) -> Any:
    gradients = []
    for schedule in (SEQUENTIAL, PACKED, MATERIALISED):
        graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named("bf16"), schedule)
        torch.manual_seed(0)
        module = build_model(ModelConfig(name="gat", layers=2, hidden=4, heads=2), 6, 4).to(comm.device).double()
        assert graph.shard.x is not None
        graph.noise.begin(1)
        module(graph.view, graph.shard.x.double()).square().sum().backward()
        all_reduce_gradients(comm, module.parameters())
        gradients.append([p.grad for p in module.parameters()])
    return gradients


def test_backward_sees_the_rows_that_forward_saw():
    for fetched, packed, kept in run_workers(packed_equals_fetched, 3, make_shards(a_graph(), spread(30, 3), 3)):
        for one, two, three in zip(fetched, packed, kept, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(one, three, rtol=1e-12, atol=1e-13)


def adjoint(comm: Communicator, shards: list[Shard]) -> Any:
    """<Hx, y> and <x, H^T y> of every linear aggregation, summed over the workers."""
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm)
    pairs = {}
    for reduce, weight in (("sum", None), ("mean", None), ("sum", "edge"), ("mean", "edge"), ("sum", "symmetric")):
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(2, graph.shard.num_global_nodes, 5, generator=generator, dtype=torch.float64).to(
            comm.device
        )
        x, y = whole[0, graph.global_ids].requires_grad_(), whole[1, graph.global_ids]
        out = graph.view.aggregate(x, reduce, weight)
        out.backward(y)
        assert x.grad is not None
        products = torch.stack([(out.detach() * y).sum(), (x.detach() * x.grad).sum()])
        pairs[reduce, weight] = comm.all_reduce(products, "control", "products").tolist()
    return pairs


@pytest.mark.parametrize("num_workers", WORKERS)
def test_linear_aggregations_are_adjoint(num_workers):
    graph = a_graph(weighted=True)
    for pairs in run_workers(adjoint, num_workers, make_shards(graph, spread(30, num_workers), num_workers)):
        for name, (forward, backward) in pairs.items():
            assert forward == pytest.approx(backward, rel=1e-12), name
            assert forward != 0


def with_dropout(comm: Communicator, shards: list[Shard], name: str) -> Any:
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm)
    graph.noise.seed = 9
    torch.manual_seed(0)
    config = ModelConfig(name=name, layers=2, hidden=4, heads=2, dropout=0.5, input_dropout=0.3)
    if name in layer_names("attention_dropout"):
        config = config.model_copy(update={"attention_dropout": 0.4})
    module = build_model(config, 6, 4).to(comm.device).double()
    assert graph.shard.x is not None
    graph.noise.begin(4)
    return graph.global_ids, module(graph.view, graph.shard.x.double()).detach()


@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gatv2", "transformer"])
def test_dropout_does_not_depend_on_placement(name):
    graph = a_graph()
    ((_, whole),) = run_workers(with_dropout, 1, [whole_shard(graph, reorder=False)], name)
    for num_workers in (2, 4):
        for ids, rows in run_workers(
            with_dropout, num_workers, make_shards(graph, spread(30, num_workers), num_workers), name
        ):
            torch.testing.assert_close(rows, whole[ids], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(whole, _undropped(graph, name)), "nothing was dropped"


def _undropped(graph: Graph, name: str) -> Tensor:
    distributed = DistributedGraph(whole_shard(graph, reorder=False))
    torch.manual_seed(0)
    module = build_model(ModelConfig(name=name, layers=2, hidden=4, heads=2), 6, 4).double()
    assert graph.x is not None
    distributed.noise.begin(None)
    return module(distributed.view, graph.x.double()).detach()
