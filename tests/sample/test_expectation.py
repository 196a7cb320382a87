"""What a sum or a mean over drawn in-edges is on average: the one over all in-edges, whichever way they are drawn."""

import pytest
import torch
from torch import Tensor

from weft.aggregate import DistributedGraph, EdgeRows
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph import Graph, from_edges
from weft.graph.csr import CSR
from weft.partitioning import Shard, whole_shard
from weft.sample import Drawing, PartitionBook, Sampler, VertexSource
from weft.sample.level import SampledLevel

DRAWS, FANOUT, SOURCES = 10_000, 3, 9
NEIGHBOURHOODS = (  # weights of each row's in-edges
    (10.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    (0.5, 0.25, 4.0, 1.0, 3.0, 0.125, 2.0, 1.0, 1.0),
    (0.0, 1.0, 0.0, 2.0, 5.0, 1.0, 0.0),
    (60.0, 25.0, 10.0, 5.0, 5.0, 1.0),  # the second is certain once the first is
    (0.0, 2.0, 0.0, 3.0),  # fewer with a weight than are asked for
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (2.0, 7.0),
)


def a_graph() -> Graph:
    """A row for each neighbourhood, all of them reading the same sources."""
    rows = len(NEIGHBOURHOODS)
    edges = [(rows + at, row, weight) for row, some in enumerate(NEIGHBOURHOODS) for at, weight in enumerate(some)]
    source, destination, weight = zip(*edges, strict=True)
    x = torch.randn(rows + SOURCES, 3, generator=torch.Generator().manual_seed(2))
    return from_edges(source, destination, weight=weight, num_nodes=rows + SOURCES, x=x)


def rows_of(result: Tensor) -> Tensor:
    return result[: DRAWS * len(NEIGHBOURHOODS)].view(DRAWS, len(NEIGHBOURHOODS), -1)


def a_sampler(shard: Shard, method: str) -> Sampler:
    comm = Communicator.alone()
    source = VertexSource(torch.arange(shard.num_nodes), shard.global_ids, 1, 5, comm, 0)
    drawing = Drawing((FANOUT,), method, 5)  # type: ignore[arg-type]
    return Sampler(source, shard, PartitionBook(shard, comm), comm, drawing)


def draw(method: str) -> tuple[DistributedGraph, Tensor, SampledLevel]:
    """Every row drawn 10,000 times, as minibatches of their own; and the input with room for as many rows."""
    shard = whole_shard(a_graph(), reorder=False)
    sampler = a_sampler(shard, method)
    rows = len(NEIGHBOURHOODS)
    keys = torch.randint(-(2**62), 2**62, (DRAWS,), generator=torch.Generator().manual_seed(8))
    drawn = sampler._own(torch.arange(rows).int().repeat(DRAWS), torch.arange(DRAWS + 1) * rows, keys, FANOUT)
    room = DRAWS * rows + SOURCES
    hop = sampler._hop(drawn, CSR(drawn.indptr, drawn.sources, room, **drawn.edge_data), FANOUT)
    graph = DistributedGraph(shard)
    assert shard.x is not None
    x = torch.zeros(room, 3, dtype=torch.float64)
    x[: rows + SOURCES] = shard.x
    return graph, x, SampledLevel(graph.topology, hop, torch.arange(room), None)


def whole(method: str, reduce: str, weight: str | None, x: Tensor) -> Tensor:
    """Over all in-edges; drawn by weight over those that have one, which is all of them where the weights count."""
    found = []
    for weights in NEIGHBOURHOODS:
        w = torch.tensor(weights, dtype=torch.float64)
        there = w > 0 if method == "weighted" else torch.ones_like(w, dtype=torch.bool)
        counts = (w if weight == "edge" else torch.ones_like(w)) * there
        total = (counts[:, None] * x[len(NEIGHBOURHOODS) :][: len(w)]).sum(0)
        found.append(total / counts.sum().clamp(min=1e-300) if reduce == "mean" else total)
    return torch.stack(found)


def check_expectation(draws: Tensor, wanted: Tensor) -> None:
    """Each number's mean lies within four standard errors of the one wanted."""
    error = (draws.mean(0) - wanted).abs()
    assert (error <= 4 * draws.std(0) / DRAWS**0.5 + 1e-9 * wanted.abs().max()).all(), (draws.mean(0), wanted)
    assert float(draws.std(0).max()) > 0, "nothing was drawn"


@pytest.mark.parametrize("method", ["neighbour", "weighted", "labor"])
def test_sums_and_means_are_those_of_the_whole_graph_on_average(method):
    graph, x, level = draw(method)
    sampled = graph.view_of(level)
    for reduce in ("sum", "mean"):
        for weight in (None, "edge"):
            draws = rows_of(sampled.aggregate(x, reduce, weight))
            check_expectation(draws, whole(method, reduce, weight, x))


@pytest.mark.parametrize("method", ["neighbour", "weighted", "labor"])
def test_messages_are_those_of_the_whole_graph_on_average(method):
    """And so are their gradients, which are linear in the draw too."""
    graph, x, level = draw(method)
    sampled = graph.view_of(level)

    def by_weight(edges: EdgeRows) -> Tensor:
        assert edges.weight is not None
        return edges.src * edges.weight[:, None]

    for reduce in ("sum", "mean"):
        scale = x.new_ones(3).requires_grad_()
        with torch.no_grad():
            draws = rows_of(sampled.message(lambda edges: edges.src, x, reduce))
        check_expectation(draws, whole(method, reduce, None, x))
        out = sampled.message(lambda edges, scale=scale: edges.src * scale, x, reduce)
        out[0 : DRAWS * len(NEIGHBOURHOODS)].sum().backward()
        torch.testing.assert_close(scale.grad, draws.sum((0, 1)))
    draws = rows_of(sampled.message(by_weight, x, "sum"))
    check_expectation(draws, whole(method, "sum", "edge", x))


def test_each_neighbour_counts_its_weight_on_average():
    """Weights 10, 1, 1, 1, 1, 1 of which three are drawn: without repetition, the heavy one always."""
    _, _, level = draw("weighted")
    counted, _ = level._factors("edge")
    csr = level.hop.csr
    assert counted is not None
    table = torch.zeros(DRAWS * len(NEIGHBOURHOODS), SOURCES, dtype=torch.float64)
    rows = torch.arange(csr.num_rows).repeat_interleave(csr.degrees())
    assert torch.unique(rows * csr.num_cols + csr.indices).numel() == csr.num_edges
    table[rows, csr.indices.long() - len(NEIGHBOURHOODS)] = counted
    for row, weights in enumerate(NEIGHBOURHOODS):
        draws = rows_of(table)[:, row, : len(weights)]
        wanted = torch.tensor(weights, dtype=torch.float64)
        error = (draws.mean(0) - wanted).abs()
        assert (error <= 4 * draws.std(0) / DRAWS**0.5 + 1e-9).all(), (draws.mean(0), wanted)
        assert (draws[:, wanted == 0] == 0).all()
        assert ((draws > 0).sum(1) == min(FANOUT, int((wanted > 0).sum()))).all()
    assert (rows_of(table)[:, 0, 0] == 10.0).all()


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf")])
def test_weights_by_which_nothing_can_be_drawn_are_refused(bad):
    graph = from_edges([0, 1, 2, 3], [1, 2, 3, 0], weight=[1.0, 2.0, 1.0, 0.0], num_nodes=4)
    assert graph.adjacency.weight is not None
    graph.adjacency.weight[2] = bad  # of the edge 1 -> 2
    shard = whole_shard(graph, reorder=False)
    a_sampler(shard, "neighbour")
    with pytest.raises(UserError, match=f"an edge into vertex 2 has weight {bad:g}: give weights of 0 or more"):
        a_sampler(shard, "weighted")
