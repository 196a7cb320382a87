"""A minibatch does not see the edges that it learns, nor their reverses; what it sees of the others is unbiased."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.partitioning.drawn import csr_edges, graph_edges
from tests.sample.cases import a_graph, spread
from tests.sample.test_expectation import DRAWS, FANOUT, NEIGHBOURHOODS, SOURCES, a_sampler, check_expectation, rows_of
from tests.sample.test_expectation import a_graph as neighbourhoods
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import Graph, to_undirected
from weft.graph.csr import CSR
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import Drawing, PartitionBook, Sampler
from weft.sample.left_out import Unseen
from weft.sample.level import SampledLevel
from weft.training.links import HeldOut, LinkPrediction
from weft.training.settings import LinkConfig

Edge = tuple[int, int]


def sampled(comm: Communicator, shards: list[Shard], exclude: bool, fanouts: tuple[int, ...], method: Any) -> Any:
    """Per step: edges that are learned here, edges that are drawn here, and what is said of the rows they lead to."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    config = LinkConfig(val=0.1, test=0.1, exclude=exclude)
    held_out = HeldOut(shard, comm, config, 3)
    left = held_out.without(shard)
    graph, book = DistributedGraph(left, comm), PartitionBook(left, comm)
    assert shard.x is not None
    links = LinkPrediction(graph, nn.Identity(), shard.x, held_out, book, config, 7)
    source = links.source(150)
    unseen = links.left_out
    if unseen is not None and method == "weighted":
        unseen = unseen.with_weight()
    sampler = Sampler(source, left, book, comm, Drawing(fanouts, method, 7), left_out=unseen)
    found = []
    for batch in sampler.draw(4, range(source.steps)):
        pairs = source.draw(4, batch.step)
        positive = pairs.exist == 1
        learned = [ids[end[positive].long()].tolist() for end in (pairs.heads, pairs.tails)]
        nodes, drawn, rows = ids[batch.nodes.long()], [], []
        for hop in batch.hops:
            tails = nodes[: hop.csr.num_rows]
            each = torch.repeat_interleave(tails, hop.csr.degrees())
            drawn.append(list(zip(nodes[hop.csr.indices.long()].tolist(), each.tolist(), strict=True)))
            lacking = torch.zeros_like(hop.degrees) if hop.left_out is None else hop.left_out
            rows.append(
                list(zip(tails.tolist(), (hop.degrees - lacking).tolist(), hop.csr.degrees().tolist(), strict=True))
            )
        found.append((list(zip(*learned, strict=True)), drawn, rows))
    kept = [(head, tail) for head, tail, _ in graph_of_shard(left)]
    return found, kept


def graph_of_shard(shard: Shard) -> list[Any]:
    edges = csr_edges(shard.local, shard.global_ids, shard.global_ids)
    return edges + csr_edges(shard.remote, shard.global_ids, shard.halo_ids)


def answers(graph: Graph, workers: int, *args: Any) -> tuple[list[Any], list[Edge]]:
    """By step, over all workers: edges learned, edges drawn and facts of rows by hop; and all training edges."""
    shards = make_shards(graph, spread(graph.num_nodes, workers), workers)
    if workers == 1:
        shards = [whole_shard(graph, reorder=False)]
    given = run_workers(sampled, workers, shards, *args)
    steps = []
    for pieces in zip(*(found for found, _ in given), strict=True):
        learned = sorted(edge for piece in pieces for edge in piece[0])
        drawn = [set().union(*(piece[1][hop] for piece in pieces)) for hop in range(len(pieces[0][1]))]
        rows = [set().union(*(piece[2][hop] for piece in pieces)) for hop in range(len(pieces[0][2]))]
        steps.append((learned, drawn, rows))
    return steps, [edge for _, kept in given for edge in kept]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("method", ["neighbour", "labor", "weighted"])
def test_learned_edges_and_their_reverses_are_not_drawn(directed: bool, method: str) -> None:
    graph = a_graph(60, 500, weighted=True)
    graph = graph if directed else to_undirected(graph)
    wanted, _ = answers(graph, 1, True, (4, 3), method)
    assert len(wanted) > 2
    for learned, drawn, _ in wanted:
        unseen = {*learned, *((tail, head) for head, tail in learned)}
        assert learned and all(hop and not unseen & hop for hop in drawn)
    seen = answers(graph, 1, False, (4, 3), method)[0]
    assert any(set(learned) & hop for learned, drawn, _ in seen for hop in drawn), "without exclusion some are drawn"
    assert answers(graph, 3, True, (4, 3), method)[0] == wanted


@pytest.mark.parametrize("workers", [1, 3])
def test_all_others_are_seen_where_all_are_drawn(workers: int) -> None:
    graph = a_graph(60, 500)
    steps, kept = answers(graph, workers, True, (-1,), "neighbour")
    assert len(kept) < len(graph_edges(graph))
    for learned, (drawn,), (rows,) in steps:
        unseen = {frozenset(edge) for edge in learned}
        left = [edge for edge in kept if frozenset(edge) not in unseen or edge[0] == edge[1]]
        tails = {tail for tail, _, _ in rows}
        assert drawn == {edge for edge in left if edge[1] in tails}
        for tail, degree, count in rows:
            assert degree == count == sum(edge[1] == tail for edge in left)


@pytest.mark.parametrize("method", ["neighbour", "weighted", "labor"])
def test_sums_and_means_are_those_of_what_is_left_on_average(method: str) -> None:
    shard = whole_shard(neighbourhoods(), reorder=False)
    sampler, rows = a_sampler(shard, method), len(NEIGHBOURHOODS)
    columns = sampler.neighbours.csr.num_cols
    gone = [(0, 1), (1, 2), (1, 4), (2, 3), (3, 1), (6, 0)]  # row, and which of its in-edges
    weights = torch.tensor([NEIGHBOURHOODS[row][at] for row, at in gone], dtype=torch.float64)
    pairs = torch.tensor([row * columns + rows + at for row, at in gone])
    sampler._unseen = [Unseen(pairs, weights, columns)]
    keys = torch.randint(-(2**62), 2**62, (DRAWS,), generator=torch.Generator().manual_seed(8))
    drawn = sampler._own(torch.arange(rows).int().repeat(DRAWS), torch.arange(DRAWS + 1) * rows, keys, FANOUT)
    room = DRAWS * rows + SOURCES
    hop = sampler._hop(drawn, CSR(drawn.indptr, drawn.sources, room, **drawn.edge_data), FANOUT)
    assert hop.left_out is not None and hop.left_out[:rows].tolist() == [1, 2, 1, 1, 0, 0, 1]
    graph = DistributedGraph(shard)
    assert shard.x is not None
    x = torch.zeros(room, 3, dtype=torch.float64)
    x[: rows + SOURCES] = shard.x
    view = graph.view_of(SampledLevel(graph.topology, hop, torch.arange(room), None))
    for reduce in ("sum", "mean"):
        for weight in (None, "edge"):
            draws = rows_of(view.aggregate(x, reduce, weight))
            check_expectation(draws, left(method, reduce, weight, x, gone))


def left(method: str, reduce: str, weight: str | None, x: Tensor, gone: list[tuple[int, int]]) -> Tensor:
    """Over the in-edges that are left; drawn by weight over those of them that have one."""
    found = []
    for row, weights in enumerate(NEIGHBOURHOODS):
        w = torch.tensor(weights, dtype=torch.float64)
        there = w > 0 if method == "weighted" else torch.ones_like(w, dtype=torch.bool)
        for at in (at for which, at in gone if which == row):
            there[at] = False
        counts = (w if weight == "edge" else torch.ones_like(w)) * there
        total = (counts[:, None] * x[len(NEIGHBOURHOODS) :][: len(w)]).sum(0)
        found.append(total / counts.sum().clamp(min=1e-300) if reduce == "mean" else total)
    return torch.stack(found)
