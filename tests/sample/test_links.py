"""Edges as seeds: what is drawn does not depend on placement, held-out edges are not seen, and edges are learned."""

from typing import Any

import pytest
import torch

import weft
from tests.partition.drawn import csr_edges
from tests.sample.cases import a_graph, spread
from tests.workers import run_workers
from weft.comm import Communicator
from weft.partition import Shard, make_shards, whole_shard
from weft.sample import Standing
from weft.train.links import Ends, HeldOut
from weft.train.settings import LinkConfig


def pairs(comm: Communicator, shards: list[Shard]) -> Any:
    """(step, head, tail, exists) of an epoch by global id, and the edges that are held out."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    held = HeldOut(shard, comm, LinkConfig(val=0.2, test=0.2), 3)
    standing = Standing(shard, comm)
    left = held.without(shard)
    links = Ends.of(left, standing).links(standing, 50, 2, 7, comm)
    found = []
    for step in range(links.steps):
        heads, tails, exist = links.pairs(5, step)
        found += list(zip([step] * len(heads), ids[heads.long()].tolist(), ids[tails.long()].tolist(), exist.tolist(),
                          strict=True))  # fmt: skip
        assert set(links.nodes(5, step).tolist()) == set(heads.tolist()) | set(tails.tolist())
    out = [[(int(h), int(t)) for h, t in zip(e.head_ids, e.tail_ids, strict=True)] for e in (held.val, held.test)]
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
    assert sorted((head, tail) for _, head, tail, exists in wanted if exists) == sorted(kept)
    assert sum(not exists for *_, exists in wanted) == 2 * len(kept)


@pytest.mark.parametrize("workers", [1, 2])
def test_edges_are_learned(tmp_path, workers):
    run = weft.train(
        "synthetic:tiny?homophily=0.95,noise=1", {"name": "sage", "hidden": 16, "layers": 2, "dropout": 0.0},
        "batchgnn", workers, run=tmp_path / "run", quiet=True, threads=1, optim={"lr": 0.02},
        train={"task": "links", "epochs": 20}, sample={"batch": 256, "fanout": [10, 10]},
    )  # fmt: skip
    assert run.summary["metric"] == "roc_auc"
    assert run.summary["test_roc_auc"] > 0.75
    assert run.evaluate()["test_roc_auc"] == pytest.approx(run.summary["test_roc_auc"], abs=1e-6)
    assert run.outputs().values.shape == (300, 16)
