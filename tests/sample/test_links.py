"""Edges as seeds: what is drawn does not depend on placement, held-out edges are not seen, and edges are learned."""

from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.partitioning.drawn import csr_edges, graph_edges
from tests.sample.cases import a_graph, spread
from tests.workers import run_workers
from weft.aggregate import DistributedGraph, GraphView
from weft.comm import Communicator
from weft.graph import Graph, from_edges
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import PartitionBook
from weft.training.links import Ends, HeldOut, LinkPrediction
from weft.training.settings import LinkConfig


def pairs(comm: Communicator, shards: list[Shard]) -> Any:
    """(step, head, tail, exists) of an epoch by global id, and the edges that are held out."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    held_out = HeldOut(shard, comm, LinkConfig(val=0.2, test=0.2), 3)
    book = PartitionBook(shard, comm)
    left = held_out.without(shard)
    ends = Ends.of(left, book)
    links = ends.pick(~ends.loops).links(book, held_out.absent, 50, 2, 7, comm)
    found = []
    for step in range(links.steps):
        heads, tails, exist = links.pairs(5, step)
        found += list(zip([step] * len(heads), ids[heads.long()].tolist(), ids[tails.long()].tolist(), exist.tolist(),
                          strict=True))  # fmt: skip
        assert set(links.seeds(5, step).tolist()) == set(heads.tolist()) | set(tails.tolist())
        assert int(links.sizes(5)[step]) == len(heads)
    out = [
        [(int(h), int(t)) for h, t in zip(e.head_ids, e.tail_ids, strict=True)] for e in (held_out.val, held_out.test)
    ]
    kept = csr_edges(left.local, left.global_ids, left.global_ids)
    kept += csr_edges(left.remote, left.global_ids, left.halo_ids)
    return found, out, [(head, tail) for head, tail, _ in kept]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_pairs_do_not_depend_on_placement(num_workers):
    graph = a_graph()
    ((wanted, held, kept),) = run_workers(pairs, 1, [whole_shard(graph, reorder=False)])
    answers = run_workers(pairs, num_workers, make_shards(graph, spread(graph.num_nodes, num_workers), num_workers))
    assert sorted(pair for answer in answers for pair in answer[0]) == sorted(wanted)
    for split in (0, 1):
        assert sorted(edge for answer in answers for edge in answer[1][split]) == sorted(held[split])
    assert sorted(edge for answer in answers for edge in answer[2]) == sorted(kept)
    # every edge is in one place; both directions of a pair are in the same
    places = [set(map(frozenset, edges)) for edges in (kept, *held)]
    assert not places[0] & places[1] and not places[0] & places[2] and not places[1] & places[2]
    assert len(kept) + len(held[0]) + len(held[1]) == graph.num_edges
    assert 0.1 * graph.num_edges < len(held[0]) < 0.3 * graph.num_edges
    learned = [(head, tail) for head, tail in kept if head != tail]
    assert sorted((head, tail) for _, head, tail, exists in wanted if exists) == sorted(learned)
    assert sum(not exists for *_, exists in wanted) == 2 * len(learned)
    edges = {(head, tail) for head, tail, _ in graph_edges(graph)}
    assert not edges & {(head, tail) for _, head, tail, exists in wanted if not exists}


def a_dense_graph(undirected: bool) -> Graph:
    """Half of all pairs are edges, and vertex 0 has edges from all others."""
    generator = torch.Generator().manual_seed(2)
    pairs = torch.rand(24, 24, generator=generator) < (0.3 if undirected else 0.5)
    pairs[1:, 0] = True
    if undirected:
        pairs |= pairs.T.clone()
    source, destination = pairs.nonzero().T
    return from_edges(source, destination, num_nodes=24, x=torch.eye(24), y=torch.arange(24))


def negatives(comm: Communicator, shards: list[Shard], epochs: int) -> Any:
    """Pairs that are said to be no edges, of many epochs and of both splits, by global id."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    held_out = HeldOut(shard, comm, LinkConfig(val=0.2, test=0.2), 3)
    book = PartitionBook(shard, comm)
    ends = Ends.of(held_out.without(shard), book)
    found = []
    for some, name in ((ends.pick(~ends.loops), "train"), (held_out.val, "val"), (held_out.test, "test")):
        links = some.links(book, held_out.absent, 50, 3, 7, comm)
        for epoch in range(epochs if name == "train" else 1):
            for step in range(links.steps):
                heads, tails, exist = (part for part in links.pairs(epoch, step))
                found.append(torch.stack([ids[heads.long()], ids[tails.long()]], 1)[exist == 0])
    return torch.cat(found)


@pytest.mark.parametrize("undirected", [False, True])
def test_pairs_that_are_no_edges_are_drawn_evenly_and_are_none(undirected):
    graph = a_dense_graph(undirected)
    found = negatives(Communicator.alone(), [whole_shard(graph, reorder=False)], 120)
    counts = torch.zeros(24, 24, dtype=torch.float64).index_put_(
        (found[:, 0], found[:, 1]), torch.ones(len(found), dtype=torch.float64), accumulate=True
    )
    allowed = ~torch.eye(24, dtype=torch.bool)
    for head, tail, _ in graph_edges(graph):
        allowed[head, tail] = False
    if undirected:
        assert torch.equal(allowed, allowed.T)
    assert (counts[~allowed] == 0).all(), "an edge or a vertex and itself was drawn"
    assert not allowed[:, 0].any() and (counts[:, 1:].sum(0) > 0).all()
    expected = counts.sum(0) / allowed.sum(0).clamp(min=1) * allowed
    chi = float(((counts - expected) ** 2 / expected)[allowed].sum())
    freedom = int(allowed.sum()) - 23
    assert abs(chi - freedom) < 4 * (2 * freedom) ** 0.5
    assert freedom > 100 and float(expected[allowed].min()) > 20


def test_a_graph_without_pairs_that_are_no_edges_is_refused():
    pairs = ~torch.eye(6, dtype=torch.bool)
    graph = from_edges(*pairs.nonzero().T, num_nodes=6, name="complete")
    with pytest.raises(weft.UserError, match="complete has edges from every vertex to each that its edges lead to"):
        HeldOut(whole_shard(graph), Communicator.alone(), LinkConfig(), 0)


class Whole(torch.nn.Module):
    """Rows of few whole numbers: scores are exact, and many of them equal."""

    def forward(self, graph: GraphView, x: torch.Tensor) -> torch.Tensor:
        return (2 * x).round()


def evaluated(comm: Communicator, shards: list[Shard]) -> Any:
    shard = shards[comm.worker]
    held_out = HeldOut(shard, comm, LinkConfig(val=0.3, test=0.3), 3)
    graph = DistributedGraph(held_out.without(shard), comm)
    book = PartitionBook(graph.shard, comm)
    links = LinkPrediction(graph, Whole(), shard.x, held_out, book, LinkConfig(val=0.3, test=0.3), 3)
    return links.evaluate()[0]


def area(scores: Any, positive: Any) -> float:
    """The chance that an edge's score is above a pair's that is none, equal ones counting half."""
    one, other = scores[positive][:, None], scores[~positive][None]
    return float((one > other).mean() + (one == other).mean() / 2)


def held_out_pairs(graph: Graph, config: LinkConfig, seed: int) -> dict[str, Any]:
    """By split heads, tails and whether they are edges, as one worker draws them, by global id."""
    shard, comm = whole_shard(graph, reorder=False), Communicator.alone()
    held_out, book = HeldOut(shard, comm, config, seed), PartitionBook(shard, comm)
    found = {}
    for name, ends in (("val", held_out.val), ("test", held_out.test)):
        links = ends.links(book, held_out.absent, ends.count, 1, seed, comm)
        heads, tails, exist = links.pairs(0, 0)
        assert links.steps == 1
        found[name] = (
            shard.global_ids[heads.long()].numpy(),
            shard.global_ids[tails.long()].numpy(),
            exist.numpy() > 0,
        )
    return found


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_area_is_that_of_a_plain_computation_with_ties(num_workers):
    graph = a_graph(60, 900)
    assert graph.x is not None
    rows = (2 * graph.x).round().numpy()
    shards = make_shards(graph, spread(60, num_workers), num_workers)
    for values in run_workers(evaluated, num_workers, shards):
        for split, (heads, tails, exist) in held_out_pairs(graph, LinkConfig(val=0.3, test=0.3), 3).items():
            scores = (rows[heads] * rows[tails]).sum(1)
            assert len(np.unique(scores)) < len(scores) / 4
            assert values[split] == pytest.approx(area(scores, exist), abs=1e-12)


@pytest.mark.parametrize("workers", [1, 3])
def test_edges_are_learned(tmp_path, workers):
    run = weft.train(
        "synthetic:tiny?homophily=0.95,noise=1", {"name": "sage", "hidden": 16, "layers": 2, "dropout": 0.0},
        "batchgnn", workers, run=tmp_path / "run", quiet=True, threads=1, optim={"lr": 0.02},
        train={"task": "links", "epochs": 20}, sample={"batch": 256, "fanout": [10, 10]},
    )  # fmt: skip
    assert run.summary["metric"] == "roc_auc"
    assert run.summary["test_roc_auc"] > 0.75
    values = run.evaluate()
    assert values["test_roc_auc"] == pytest.approx(run.summary["test_roc_auc"], abs=1e-6)
    rows = run.outputs().values
    assert rows.shape == (300, 16)
    data = weft.load("synthetic:tiny?homophily=0.95,noise=1")
    for split, (heads, tails, exist) in held_out_pairs(data, run.config.link, run.config.seed).items():
        wanted = area((rows[heads] * rows[tails]).sum(1), exist)
        assert values[f"{split}_roc_auc"] == pytest.approx(wanted, abs=1e-4)
