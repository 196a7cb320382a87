"""What GraphView promises beyond the equalities: constant input, messages, weights, clear refusals."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.partitioning.drawn import RELATIONS, csr_edges, graph_of
from weft import UserError
from weft.aggregate import DistributedGraph, GraphView
from weft.aggregate.noise import Noise
from weft.graph.csr import filter_csr, with_self_loops
from weft.kernels.hash import hash_key, hash_uniform
from weft.partitioning import whole_shard

EDGES = [(0, 1), (2, 1), (1, 0), (3, 3), (0, 2)]


def a_view(weighted=False):
    return distributed(weighted).view


def distributed(weighted=False):
    return DistributedGraph(whole_shard(graph_of(5, EDGES, weighted), reorder=False))


def untyped():
    return DistributedGraph(whole_shard(graph_of(5, EDGES, False, relations=0), reorder=False)).view


def test_docs_layers_shows_all_that_layers_see():
    page = (Path(__file__).parents[2] / "docs" / "layers.md").read_text()
    shown = set(re.findall(r"`graph\.(\w+)", page.partition("## A model of your own")[0]))
    assert shown == {name for name in vars(GraphView) if not name.startswith("_")}


def test_constant_input_is_aggregated_once(monkeypatch):
    graph = distributed()
    view, x = graph.view, graph.shard.x
    graph.hold_constant(x)
    first = view.aggregate(x, "mean")
    assert view.aggregate(x, "mean") is first
    assert view.aggregate(x.clone(), "mean") is not first, "only this very tensor is constant"
    torch.testing.assert_close(view.aggregate(x.clone(), "mean"), first)
    graph.hold_constant(x.clone())
    assert view.aggregate(x, "mean") is not first


def test_messages_with_every_reduction_equal_aggregate():
    view = a_view()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    for reduce in ("sum", "mean", "max"):
        message = view.message(lambda edges: edges.src, x, reduce=reduce)
        torch.testing.assert_close(message, view.aggregate(x, reduce))
        probe = torch.randn_like(x)
        (one,) = torch.autograd.grad((message * probe).sum(), x)
        (two,) = torch.autograd.grad((view.aggregate(x, reduce) * probe).sum(), x)
        torch.testing.assert_close(one, two)


def test_weights_of_edges():
    view = a_view(weighted=True)  # weights 1..5 in the order of EDGES
    x = torch.eye(5, dtype=torch.float64)
    wanted = torch.zeros(5, 5, dtype=torch.float64)
    for number, (source, destination) in enumerate(EDGES):
        wanted[destination, source] += number + 1
    torch.testing.assert_close(view.aggregate(x, "sum", "edge"), wanted)
    torch.testing.assert_close(view.aggregate(x, "mean", "edge"), wanted / wanted.sum(1, keepdim=True).clamp(min=1))
    torch.testing.assert_close(view.aggregate(x, "sum"), (wanted > 0).double(), msg="weights only where asked for")
    given = view.aggregate(x, "sum", 2 * view.shard.local.weight)
    torch.testing.assert_close(given, 2 * wanted)
    total = torch.ones(5, 5, dtype=torch.float64)
    torch.testing.assert_close(view.aggregate(x, "sum", "edge", into=total), wanted + 1)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_by_relation_is_one_aggregate_per_relation(reduce):
    graph = distributed(weighted=True)
    view = graph.view
    csr = view.shard.local
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    together = view.aggregate(x, reduce, "edge", by="relation").view(5, RELATIONS, 3)
    for number in range(RELATIONS):
        alone = DistributedGraph(replace(view.shard, local=filter_csr(csr, csr.relation == number))).view
        wanted = alone.aggregate(x, reduce, "edge")
        torch.testing.assert_close(together[:, number], wanted)
        probe = torch.randn(5, 3, dtype=torch.float64)
        (one,) = torch.autograd.grad((together[:, number] * probe).sum(), x, retain_graph=True)
        (two,) = torch.autograd.grad((wanted * probe).sum(), x)
        torch.testing.assert_close(one, two)
    constant = x.detach()
    graph.hold_constant(constant)
    held = view.aggregate(constant, reduce, "edge", by="relation")
    assert held is view.aggregate(constant, reduce, "edge", by="relation")
    torch.testing.assert_close(held.view(5, RELATIONS, 3), together.detach())


def test_self_loops_keep_what_edges_carry():
    csr = a_view(weighted=True).shard.local
    looped = with_self_loops(csr)
    ids = torch.arange(5)
    before, after = (set(csr_edges(edges, ids, ids)) for edges in (csr, looped))
    assert before < after and {(u, v) for u, v, _ in after - before} == {(i, i) for i in range(5) if i != 3}
    assert {carried for _, _, carried in after - before} == {(1.0, -1, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda v: v.aggregate(torch.zeros(4, 2)), "one row per owned vertex"),
        (lambda v: v.aggregate(torch.zeros(5, 2), "median"), "unknown reducer 'median'"),
        (lambda v: v.aggregate(torch.zeros(5, 2), "mean", "symmetric"), "reduce="),
        (lambda v: v.aggregate(torch.zeros(5, 2), "sum", torch.ones(3)), "5 edges"),
        (lambda v: v.aggregate(torch.zeros(5, 2), "sum", torch.ones(5, requires_grad=True)), "graph.message"),
        (lambda v: v.aggregate(torch.zeros(5, 2), by="kind"), "choose relation"),
        (lambda v: v.aggregate(torch.zeros(5, 2), weight="symmetric", by="relation"), 'no weight but "edge"'),
        (lambda v: v.aggregate(torch.zeros(5, 2), weight=torch.ones(5), by="relation"), 'no weight but "edge"'),
        (lambda v: untyped().aggregate(torch.zeros(5, 2), by="relation"), "--relation-column"),
    ],
)
def test_refusals(call, hint):
    with pytest.raises(UserError, match=hint):
        call(a_view())


def test_noise_is_a_function_of_where_and_when():
    noise = Noise(seed=3)
    noise.begin(1)
    first = [noise.next_key() for _ in range(3)]
    noise.begin(1)
    assert [noise.next_key() for _ in range(3)] == first and len(set(first)) == 3
    noise.begin(2)
    assert noise.next_key() not in first
    noise.begin(None)
    assert noise.next_key() is None
    ids = torch.arange(2000)
    uniform = hash_uniform(ids, 8, hash_key(5))
    assert torch.equal(hash_uniform(ids.flip(0), 8, hash_key(5)), uniform.flip(0))
    assert abs(uniform.mean().item() - 0.5) < 0.01 and uniform.min() >= 0 and uniform.max() < 1
    assert abs(torch.corrcoef(uniform.t()).fill_diagonal_(0).abs().max().item()) < 0.1


def test_dropout_keeps_the_mean_and_is_undone_in_evaluation():
    graph = distributed()
    view = graph.view
    x = torch.ones(5, 4000, requires_grad=True)
    graph.noise.begin(1)
    out = view.dropout(x, 0.25)
    assert out.detach().unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())
    graph.noise.begin(None)
    assert view.dropout(x, 0.25) is x
