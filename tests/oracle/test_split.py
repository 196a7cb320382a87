"""Minibatches that workers share: the numbers of one device, every vertex computed once, volumes by the formula."""

from typing import Any

import pytest
import torch

from tests.oracle.test_minibatch import MODELS, gradients, known_seeds, same, weights
from tests.sample.cases import CLASSES, FEATURES, a_graph, set_up, spread, start, train
from tests.workers import run_workers
from weft.aggregate import DistributedGraph, format_named
from weft.comm import Communicator
from weft.layers import ModelConfig, build_model
from weft.layers.stack import add_embedding
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import SampleConfig

SPLITS = ((2, False), (3, True), (4, False))  # workers; skewed: the last owns nothing, the first nearly all
SHARED = MODELS | {"deep-gcn": {"name": "gcn", "layers": 3, "hidden": 3, "dropout": 0.3}}


@pytest.mark.parametrize("name", SHARED)
def test_a_split_minibatch_is_that_of_one_device(name):
    graph, model = a_graph(), SHARED[name]
    settings = {"fanout": (3,) * model["layers"], "cache_aggregates": "never"}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], model, settings)
    assert len(wanted) > 1 and any(float(grad.abs().max()) > 0 for grad in wanted[0][1])
    for num_workers, skewed in SPLITS:
        shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
        shared = {**settings, "plan": "split", "macrobatch": num_workers - 1}
        for answer in run_workers(gradients, num_workers, shards, model, shared):
            same(answer, wanted)


@pytest.mark.parametrize("method", ["labor", "weighted"])
def test_so_it_is_for_other_ways_to_draw(method):
    graph = a_graph(weighted=True)
    settings = {"fanout": (3, 2), "cache_aggregates": "never", "method": method, "dependent": 2}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], MODELS["gcn"], settings)
    (other,) = run_workers(
        gradients, 1, [whole_shard(graph, reorder=False)], MODELS["gcn"], {**settings, "dependent": 1}
    )
    assert wanted[0][0] == other[0][0] and wanted[1][0] != other[1][0]  # the second step draws as the first did
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    for answer in run_workers(gradients, 3, shards, MODELS["gcn"], {**settings, "plan": "split"}):
        same(answer, wanted)


@pytest.mark.parametrize("alone", [1, 2])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_hops_nearest_the_seeds_can_be_each_workers_own(name, alone):
    graph, model = a_graph(), {**MODELS[name], "layers": 3, "dropout": 0.3}
    settings = {"fanout": (3, 2, 3), "cache_aggregates": "never"}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], model, settings)
    for num_workers, skewed in SPLITS:
        shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
        shared = {**settings, "plan": "split", "alone_hops": alone, "macrobatch": 2}
        for answer in run_workers(gradients, num_workers, shards, model, shared):
            same(answer, wanted)


@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize("name", ["gcn", "sage", "sage-max"])
def test_kept_aggregates_are_the_last_hop_with_all_neighbours(name, alone):
    graph = a_graph()
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    shared = {"plan": "split", "alone_hops": alone}
    kept, sampled = (
        run_workers(gradients, 3, shards, MODELS[name], {**shared, **settings})[0]
        for settings in (
            {"fanout": (3, 2), "cache_aggregates": "always"},
            {"fanout": (3, -1), "cache_aggregates": "never"},
        )
    )
    same(kept, sampled, rtol=1e-8)


@pytest.mark.parametrize("name", ["gcn", "gat", "own"])
def test_planning_together_changes_no_bit(name):
    graph = a_graph(200, 2000)
    shards = make_shards(graph, spread(graph.num_nodes, 4), 4)
    common = {"fanout": (4, 3), "cache_aggregates": "never", "plan": "split"}
    plain = run_workers(weights, 4, shards, MODELS[name], {**common, "macrobatch": 1, "overlap": False})
    settings = {**common, "macrobatch": 3, "hot_mib": 0.001}
    for found, wanted in zip(run_workers(weights, 4, shards, MODELS[name], settings), plain, strict=True):
        assert found[0] == wanted[0]
        for one, other in zip(found[1], wanted[1], strict=True):
            assert torch.equal(one, other)


# -- learned rows --------------------------------------------------------------------------------------------------


def learned(comm: Communicator, shards: list[Shard], settings: dict[str, Any]) -> Any:
    """Losses of two epochs on rows that are learned, which every step changes, and the rows in the end, by id."""
    shard = shards[comm.worker]
    graph, rows = DistributedGraph(shard, comm), known_seeds(shard)
    torch.manual_seed(0)
    model = build_model(ModelConfig(name="sage", layers=2, hidden=8), FEATURES, CLASSES).double()
    add_embedding(model, FEATURES, shard.global_ids, 7)
    model.double()
    config = SampleConfig(batch=16, fanout=(3, 2), **settings)
    assert isinstance(model.embedding, torch.Tensor)
    steps = set_up(graph, model, model.embedding, rows, config, "split", 2, 9).steps()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = list(train(comm, steps, model, 2, optimiser))
    return losses, dict(zip(shard.global_ids.tolist(), model.embedding.detach().tolist(), strict=True))


@pytest.mark.parametrize("alone", [0, 1])
def test_learned_rows_are_exchanged_as_they_are_now(alone):
    graph = a_graph()
    (wanted,) = run_workers(learned, 1, [whole_shard(graph, reorder=False)], {})
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    rows: dict[int, list[float]] = {}
    for losses, some in run_workers(learned, 3, shards, {"macrobatch": 2, "alone_hops": alone}):
        assert losses == pytest.approx(wanted[0], rel=1e-9)
        rows |= some
    found, expected = (torch.tensor([by_id[node] for node in sorted(by_id)]) for by_id in (rows, wanted[1]))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


# -- what travels --------------------------------------------------------------------------------------------------


def volumes(comm: Communicator, shards: list[Shard], plan: str, together: int, codec: str) -> Any:
    """Bytes of an epoch, and what its minibatches are made of."""
    shard = shards[comm.worker]
    rows = known_seeds(shard)
    model = {"name": "sage", "layers": 3, "hidden": 8}
    settings = {"fanout": (3, 2, 2), "cache_aggregates": "never", "macrobatch": together}
    setup = start(comm, shard, rows, model, torch.float32, plan, **settings)  # type: ignore[arg-type]
    setup.graph.format = format_named(codec)
    steps = setup.steps()
    before = dict(comm.sent)
    reads, edges, away = [], 0, [0] * 3
    epoch = steps.epoch(1)
    for step in epoch:
        batch = step.minibatch.batch  # type: ignore[attr-defined]
        reads.append(batch.nodes.tolist())
        edges += batch.num_edges
        for hop, level in enumerate(batch.hops):
            away[hop] += 0 if level.remote is None else level.remote.ids.numel()
        step.loss().backward()
    sent = {kind: comm.sent[kind] - before[kind] for kind in ("hidden_forward", "hidden_backward")}
    sent["features"] = steps.planned_bytes()["features"]
    steps.close()
    return sent, reads, edges, away, setup.loader.counts, setup.book.own


def spread_by_worker(num_workers: int, plan: str, together: int = 1, codec: str = "raw") -> Any:
    graph = a_graph(200, 2000)
    owners = spread(graph.num_nodes, num_workers)
    return run_workers(volumes, num_workers, make_shards(graph, owners, num_workers), plan, together, codec)


@pytest.mark.parametrize("together", [1, 4])
def test_rows_are_loaded_once_and_bytes_are_the_formulas(together):
    (alone,) = spread_by_worker(1, "independent")
    answers = spread_by_worker(4, "split", together)
    apart = spread_by_worker(4, "independent")
    assert sum(answer[2] for answer in answers) == alone[2] < sum(answer[2] for answer in apart)  # edges: each once
    wanted = sum(len(nodes) for nodes in alone[1])
    loaded = sum(answer[4].loaded for answer in answers)
    if together == 1:
        assert loaded == wanted < sum(answer[4].requested for answer in apart)
    else:
        steps = len(alone[1])
        unions = (set().union(*alone[1][first : first + together]) for first in range(0, steps, together))
        assert loaded == sum(map(len, unions)) < wanted
    fetched = 0
    for answer in answers:
        own = set(answer[5])
        steps = [set(nodes) - own for nodes in answer[1]]
        fetched += sum(len(set().union(*steps[first : first + together])) for first in range(0, len(steps), together))
    total = {kind: sum(answer[0][kind] for answer in answers) for kind in answers[0][0]}
    assert total["features"] == fetched * FEATURES * 4
    # Rows go out as wide as the layer before gave them, or narrower: the last layer multiplies first.
    first, second, third = (sum(answer[3][hop] for answer in answers) for hop in range(3))
    assert third == 0 and min(first, second) > 0
    hidden = first * CLASSES * 4 + second * 8 * 4
    assert total["hidden_forward"] == total["hidden_backward"] == hidden


def test_integers_on_the_wire_are_fewer_bytes():
    wide, narrow = spread_by_worker(3, "split", codec="raw"), spread_by_worker(3, "split", codec="int8")
    totals = [sum(answer[0]["hidden_forward"] for answer in answers) for answers in (wide, narrow)]
    second = sum(answer[3][1] for answer in wide)
    first = sum(answer[3][0] for answer in wide)
    assert totals == [first * 16 + second * 32, first * 10 + second * 14]


def test_rounded_rows_train_nearly_as_exact_ones():
    graph = a_graph()
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    model, settings = MODELS["sage"], {"fanout": (3, 2), "cache_aggregates": "never"}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], model, settings)
    for found in run_workers(_rounded, 3, shards, model, settings):
        assert [loss for loss, _ in found] != [loss for loss, _ in wanted]
        same(found, wanted, rtol=0.05)


def _rounded(comm: Communicator, shards: list[Shard], model: dict[str, Any], settings: dict[str, Any]) -> Any:
    shard = shards[comm.worker]
    setup = start(comm, shard, known_seeds(shard), model, torch.float32, "split", last_epoch=1, **settings)
    setup.graph.format = format_named("int8")
    module, steps = setup.model, setup.steps("balanced")
    return [(loss, [weight.grad.double() for weight in module.parameters()]) for loss in train(comm, steps, module, 1)]
