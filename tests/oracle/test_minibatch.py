"""Minibatches: draws do not depend on placement, planning together changes no bit, volumes are the formula's."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.cases import UserLayer
from tests.sample.cases import CLASSES, FEATURES, a_graph, set_up, spread, start, train
from tests.workers import run_workers
from weft.aggregate import DistributedGraph, GraphView
from weft.comm import Communicator
from weft.layers import BatchNorm, ModelConfig, Stack, build_model
from weft.layers.layer import NATIVE, Layer
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import Drawing, PartitionBook, SampleConfig, Sampler, VertexSource, enter
from weft.training.loss import GlobalLoss

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
    "sage": {"name": "sage", "layers": 2, "hidden": 8},
    "sage-narrow": {"name": "sage", "layers": 2, "hidden": 3},
    "sage-sum": {"name": "sage", "layers": 2, "hidden": 8, "reduce": "sum"},
    "sage-max": {"name": "sage", "layers": 2, "hidden": 8, "reduce": "max"},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "attention_dropout": 0.3},
    "gatv2": {"name": "gatv2", "layers": 2, "hidden": 4, "heads": 2},
    "transformer": {"name": "transformer", "layers": 2, "hidden": 4, "heads": 2},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 4},
    "residual": {"name": "sage", "layers": 3, "hidden": 8, "residual": True, "norm": "layer", "input_dropout": 0.2},
    "linear": {"name": "gcn", "layers": 2, "hidden": 8, "output": "linear", "norm": "layer"},
    "linear-norm": {"name": "sage", "layers": 2, "hidden": 8, "output": "linear", "norm": "batch", "residual": True},
    "own": {"name": "tests.oracle.test_minibatch:own_model", "layers": 2, "hidden": 8},
    "batch-norm": {"name": "sage", "layers": 3, "hidden": 8, "norm": "batch"},
    "gin": {"name": "gin", "layers": 3, "hidden": 4},
    "own-norm": {"name": "tests.oracle.test_minibatch:own_norm", "layers": 2, "hidden": 8},
}
# Over the vertices of a minibatch, which the full graph has not.
NORMALISED = ("batch-norm", "linear-norm", "gin", "own-norm")


def own_model(num_in: int, num_out: int, config: ModelConfig) -> Stack:
    """Layers as a user writes them, in a stack."""
    layers = [UserLayer(num_in, config.hidden), UserLayer(config.hidden, num_out)]
    return Stack(layers, config, [num_in, config.hidden, num_out])


class Normalised(UserLayer):
    """A layer that normalises its input itself, over the vertices of the last hop too."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(num_in, num_out)
        self.norm = BatchNorm(num_in)

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        return super().forward(graph, self.norm(graph, x))


def own_norm(num_in: int, num_out: int, config: ModelConfig) -> Stack:
    widths = [num_in, config.hidden, num_out]
    return Stack([Normalised(into, out) for into, out in pairwise(widths)], config, widths)


def known_seeds(shard: Shard) -> Tensor:
    assert shard.y is not None and shard.train_mask is not None
    return (shard.train_mask & (shard.y >= 0)).nonzero().squeeze(1)


# -- what is drawn -------------------------------------------------------------------------------------------------


def draw(comm: Communicator, shards: list[Shard], method: str, together: int) -> Any:
    """(step, hop, vertex) -> its drawn in-edges, by global id, with all that they carry."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    book = PartitionBook(shard, comm)
    seeds = VertexSource(known_seeds(shard), shard.global_ids, 7, 9, comm, book.own.start)
    sampler = Sampler(seeds, shard, book, comm, Drawing((3, 2, -1), method, 9))  # type: ignore[arg-type]
    found: dict[Any, Any] = {}
    for first in range(0, seeds.steps, together):
        steps = range(first, min(first + together, seeds.steps))
        for batch in sampler.draw(4, steps):
            where = ids[batch.nodes.long()]
            assert (batch.ids is None) == (comm.num_workers == 1)
            assert batch.ids is None or torch.equal(where[: len(batch.ids)], batch.ids)
            for hop, level in enumerate(batch.hops):
                csr = level.csr
                for row in range(csr.num_rows):
                    edges = range(int(csr.indptr[row]), int(csr.indptr[row + 1]))
                    sources = [int(ids[batch.nodes[csr.indices[k]]]) for k in edges]
                    data = [tuple(float(v) for d in csr.edge_data.values() for v in d[k].reshape(-1)) for k in edges]
                    vertex = (batch.step, hop, int(where[row]))
                    drawn = (sources, data, int(level.degrees[row]))
                    assert found.setdefault(vertex, drawn) == drawn
    return found


@pytest.mark.parametrize("method", ["neighbour", "labor", "weighted"])
def test_draws_do_not_depend_on_placement_or_planning(method):
    graph = a_graph(weighted=True)
    (wanted,) = run_workers(draw, 1, [whole_shard(graph, reorder=False)], method, 1)
    assert {step for step, _, _ in wanted} == set(range(-(-int(known_seeds(whole_shard(graph)).numel()) // 7)))
    for num_workers, together, skewed in ((1, 3, False), (2, 1, False), (3, 4, True), (4, 100, False)):
        shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
        found: dict[Any, Any] = {}
        for answer in run_workers(draw, num_workers, shards, method, together):
            for vertex, drawn in answer.items():
                assert found.setdefault(vertex, drawn) == drawn, "two workers drew differently"
        assert found == wanted


def seeds_of(comm: Communicator, ids: list[Tensor], batch: int) -> Any:
    mine = ids[comm.worker]
    seeds = VertexSource(torch.arange(mine.numel()), mine, batch, 1, comm, 0)
    return [[mine[rows].tolist() for rows in seeds.epoch(epoch)] for epoch in (1, 2)]


@pytest.mark.parametrize("num_workers", [1, 4])
def test_every_seed_is_in_one_minibatch_of_an_epoch(num_workers):
    """4,097 seeds in batches of 1,024: five steps for every worker, also for one that has no seed."""
    everyone = torch.randperm(4097, generator=torch.Generator().manual_seed(1)) * 3
    shares = [everyone] if num_workers == 1 else [everyone[:4000], everyone[4000:4001], everyone[:0], everyone[4001:]]
    answers = run_workers(seeds_of, num_workers, shares, 1024)
    epochs = []
    for epoch in (0, 1):
        steps = [[seed for answer in answers for seed in answer[epoch][step]] for step in range(5)]
        assert all(len(answer[epoch]) == 5 for answer in answers)
        assert [len(step) for step in steps] == [1024, 1024, 1024, 1024, 1]
        assert sorted(seed for step in steps for seed in step) == sorted(everyone.tolist())
        epochs.append([sorted(step) for step in steps])
    assert epochs[0] != epochs[1]
    (alone,) = run_workers(seeds_of, 1, [everyone], 1024)
    assert epochs == [[sorted(step) for step in epoch] for epoch in alone]


# -- what is trained -----------------------------------------------------------------------------------------------


def gradients(comm: Communicator, shards: list[Shard], model: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Loss and gradients of every step of an epoch, summed over workers, and running statistics; weights stay."""
    shard = shards[comm.worker]
    setup = start(comm, shard, known_seeds(shard), model, last_epoch=1, **settings)
    module, steps = setup.model, setup.steps("balanced")
    return [
        (loss, [weight.grad.clone() for weight in module.parameters()] + [kept.clone() for kept in module.buffers()])
        for loss in train(comm, steps, module, 1)
    ]


def same(one: Any, other: Any, rtol: float = 1e-9) -> None:
    assert len(one) == len(other)
    for (loss, grads), (wanted_loss, wanted) in zip(one, other, strict=True):
        assert loss == pytest.approx(wanted_loss, rel=rtol)
        for grad, expected in zip(grads, wanted, strict=True):
            torch.testing.assert_close(grad, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_workers_trains_the_same_minibatches(name):
    graph = a_graph()
    settings = {"fanout": (3,) * MODELS[name]["layers"], "cache_aggregates": "never"}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], MODELS[name], settings)
    assert len(wanted) > 1 and any(float(grad.abs().max()) > 0 for grad in wanted[0][1])
    for num_workers, skewed in ((2, False), (3, True), (4, False)):
        shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
        for answer in run_workers(gradients, num_workers, shards, MODELS[name], settings):
            same(answer, wanted)


@pytest.mark.parametrize("cache", ["never", "always"])
@pytest.mark.parametrize(("plan", "alone"), [("independent", 0), ("macrobatch", 0), ("split", 0), ("split", 1)])
def test_statistics_count_a_vertex_once_under_every_plan(plan, alone, cache):
    graph = a_graph()
    for name in ("batch-norm", "gin"):
        settings = {"fanout": (3, 2, 2), "cache_aggregates": cache}
        (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], MODELS[name], settings)
        settings |= {"plan": plan, "alone_hops": alone, "macrobatch": 2}
        for num_workers, skewed in ((2, False), (3, True)):
            shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
            for answer in run_workers(gradients, num_workers, shards, MODELS[name], settings):
                same(answer, wanted, rtol=1e-8)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gat", "residual", *NORMALISED)])
def test_with_all_neighbours_a_minibatch_of_everything_is_the_full_graph(name):
    graph, model = a_graph(), {**MODELS[name], "dropout": 0.0}
    shard = whole_shard(graph, reorder=False)
    settings = {"fanout": (-1,) * model["layers"], "batch": 1000, "cache_aggregates": "never"}
    (found,) = run_workers(gradients, 1, [shard], model, settings)
    graph = DistributedGraph(shard)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), FEATURES, CLASSES, graph.num_relations).double()
    assert shard.x is not None
    loss = GlobalLoss(shard.y, known_seeds(shard), CLASSES, "balanced", graph.comm)(
        module(graph.view, shard.x.double())
    )
    loss.backward()
    same(found, [(loss.item(), [parameter.grad for parameter in module.parameters()])])


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("name", ["gcn", "sage", "sage-max", "gin"])
def test_cached_aggregates_are_the_last_hop_with_all_neighbours(name, num_workers):
    graph = a_graph()
    model = {**MODELS[name], "layers": 2}
    shards = make_shards(graph, spread(graph.num_nodes, num_workers), num_workers)
    cached, sampled = (
        run_workers(gradients, num_workers, shards, model, settings)[0]
        for settings in (
            {"fanout": (3, 2), "cache_aggregates": "always"},
            {"fanout": (3, -1), "cache_aggregates": "never"},
        )
    )
    same(cached, sampled, rtol=1e-8)


def weights(comm: Communicator, shards: list[Shard], model: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Losses of two epochs of training, and the weights after them, bit by bit."""
    shard = shards[comm.worker]
    plan = settings.pop("plan")
    setup = start(comm, shard, known_seeds(shard), model, torch.float32, plan, **settings)
    module, steps = setup.model, setup.steps()
    assert setup.loader.macrobatch_size == settings.get("macrobatch", 1)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = list(train(comm, steps, module, 2, optimiser))
    return losses, [parameter.detach().clone() for parameter in module.parameters()], setup.loader.counts


@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "own"])
def test_planning_together_changes_no_bit(name, num_workers):
    graph = a_graph(200, 2000)
    shards = make_shards(graph, spread(graph.num_nodes, num_workers), num_workers)
    common = {"fanout": (4, 3), "cache_aggregates": "never"}
    plain = run_workers(weights, num_workers, shards, MODELS[name], {**common, "plan": "independent", "overlap": False})
    for together, hot in ((3, 0.0), (5, 0.001)):
        settings = {**common, "plan": "macrobatch", "macrobatch": together, "hot_mib": hot}
        for found, wanted in zip(run_workers(weights, num_workers, shards, MODELS[name], settings), plain, strict=True):
            assert found[0] == wanted[0]
            assert all(torch.equal(one, other) for one, other in zip(found[1], wanted[1], strict=True))
            assert found[2].requested == wanted[2].requested and found[2].unique <= wanted[2].unique
            if num_workers > 1:
                assert found[2].remote < wanted[2].remote
                assert (found[2].cached > 0) == (hot > 0)


# -- what travels --------------------------------------------------------------------------------------------------


def volumes(comm: Communicator, shards: list[Shard], together: int, at_rest: str, hot: float) -> Any:
    """Bytes of an epoch's planning, and the sets of vertices that its minibatches read."""
    shard = shards[comm.worker]
    settings = {"fanout": (3, 2), "cache_aggregates": "never", "features": at_rest, "hot_mib": hot}
    setup = start(comm, shard, known_seeds(shard), MODELS["gcn"], torch.float32, macrobatch=together, **settings)
    sent: dict[str, int] = {}
    reads = []
    for macro in setup.loader.macrobatches(1):
        reads.append([set(batch.nodes.tolist()) for batch in macro.batches])
        for kind, count in macro.sent.items():
            sent[kind] = sent.get(kind, 0) + count
    setup.loader.close()
    kept = (setup.loader._fetcher.store._table >= 0).nonzero().squeeze(1).tolist()
    return sent, reads, set(kept), setup.book.own, setup.loader.counts


@pytest.mark.parametrize(
    ("together", "at_rest", "hot"), [(1, "float32", 0), (3, "bfloat16", 0), (4, "int8", 0.0005), (2, "int2", 0)]
)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_rows_travel_once_and_as_many_bytes_as_the_formula_says(num_workers, together, at_rest, hot):
    graph = a_graph(200, 2000)
    shards = make_shards(graph, spread(graph.num_nodes, num_workers), num_workers)
    answers = run_workers(volumes, num_workers, shards, together, at_rest, hot)
    remote = cached = unique = requested = 0
    for _, macros, kept, own, _ in answers:
        assert all(len(macro) <= together for macro in macros)
        for macro in macros:
            union = set().union(*macro)
            unique += len(union)
            requested += sum(map(len, macro))
            remote += len(union - set(own) - kept)
            cached += len(union & kept)
    row = {"float32": 4 * FEATURES, "bfloat16": 2 * FEATURES, "int8": FEATURES + 6, "int2": 6 + (2 * FEATURES + 7) // 8}
    total = {kind: sum(answer[0][kind] for answer in answers) for kind in answers[0][0]}
    assert total["features"] == remote * row[at_rest]
    assert (remote > 0) == (num_workers > 1) and (cached > 0) == (num_workers > 1 and hot > 0)
    counts = [answer[4] for answer in answers]
    assert sum(count.remote for count in counts) == remote and sum(count.cached for count in counts) == cached
    assert sum(count.unique for count in counts) == unique
    assert sum(count.requested for count in counts) == requested


# -- what sums stand for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["neighbour", "labor", "weighted"])
@pytest.mark.parametrize(("reduce", "weight"), [("sum", None), ("mean", None), ("sum", "symmetric"), ("mean", "edge")])
def test_the_mean_of_many_draws_is_the_whole_aggregate(method, reduce, weight):
    graph = a_graph(40, 800, weighted=weight == "edge" or method == "weighted")
    shard = whole_shard(graph, reorder=False)
    assert shard.x is not None
    x = shard.x.double()
    whole = DistributedGraph(shard)
    wanted = whole.view.aggregate(x, reduce, weight)
    rows = torch.arange(40)

    class Probe(Layer):
        traits = replace(NATIVE, adds_loops=weight == "symmetric", wants_degrees=weight == "symmetric")

        def __init__(self) -> None:
            super().__init__()
            self.bias = None

        def combine(self, graph: GraphView, x: Tensor) -> Tensor:
            return graph.aggregate(x, reduce, weight)

    config = SampleConfig(batch=40, fanout=(5,), method=method, cache_aggregates="never", overlap=False)
    probe = Stack([Probe()], ModelConfig(name="gcn", layers=1), [FEATURES, FEATURES])
    loader = set_up(whole, probe, x, rows, config, "independent", 400, 3).loader
    draws = []
    for epoch in range(1, 401):
        for minibatch in loader.epoch(epoch):
            inputs = minibatch.inputs()
            enter(whole, minibatch.batch, inputs)
            with whole.training_pass(epoch, 1) as view:
                out = probe(view, inputs.x)
            draws.append(torch.empty_like(out).index_copy_(0, minibatch.batch.seeds.long(), out))
    stacked = torch.stack(draws)
    error = (stacked.mean(0) - wanted).abs()
    assert (error <= 5 * stacked.std(0) / len(draws) ** 0.5 + 1e-12).float().mean() > 0.995
    assert float(stacked.std(0).max()) > 0, "nothing was drawn"
