"""Edges with times: no minibatch sees an edge of a seed's future, and what it sees is what a graph cut then has."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.sample.cases import CLASSES, FEATURES, Setup, spread, train
from tests.sample.test_expectation import DRAWS, FANOUT, NEIGHBOURHOODS, a_graph, check_expectation, rows_of
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import Graph, from_edges
from weft.graph.csr import CSR, filter_csr, row_numbers
from weft.kernels.arguments import METHODS
from weft.kernels.native import sampling as native
from weft.kernels.reference import sampling as reference
from weft.layers import ModelConfig, build_model
from weft.partitioning import make_shards, whole_shard
from weft.sample import Drawing, PartitionBook, SampleConfig, Sampler, VertexSource
from weft.sample.level import SampledLevel
from weft.sample.moment_sampler import MomentSampler
from weft.sample.moments import Moments
from weft.training.by_time import time_borders
from weft.training.evaluate import predict
from weft.training.minibatches import make_loader
from weft.training.timed import MomentRows

NODES, EDGES, TIMES = 60, 900, 12
SEES = ("until", "before")


def timed_graph(weighted: bool = False, relations: int | None = None, loops: bool = True) -> Graph:
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, NODES, (2, EDGES))
    dst = dst if loops else np.where(src == dst, (dst + 1) % NODES, dst)
    return from_edges(
        src, dst, num_nodes=NODES, x=rng.normal(size=(NODES, FEATURES)), y=rng.integers(0, CLASSES, NODES),
        edge_time=rng.integers(0, TIMES, EDGES) - 3, vertex_time=rng.integers(0, TIMES, NODES) - 3,
        weight=rng.random(EDGES) + 0.1 if weighted else None,
        relation=None if relations is None else rng.integers(0, relations, EDGES), num_relations=relations,
    )  # fmt: skip


def moment_sampler(graph: Graph, fanouts: tuple[int, ...], method: str, sees: str, batch: int = 16) -> MomentSampler:
    shard, comm = whole_shard(graph, reorder=False), Communicator.alone()
    source = VertexSource(torch.arange(graph.num_nodes), shard.global_ids, batch, 0, comm, 0, shard.time)
    drawing = Drawing(fanouts, method, 0, sees=sees)
    return MomentSampler(source, shard, PartitionBook(shard, comm), comm, drawing, edge_ids=True)


# -- the future -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", SEES)
@pytest.mark.parametrize("method", METHODS)
def test_no_edge_of_the_future_is_drawn_in_100_000_draws(method, sees):
    sampler = moment_sampler(timed_graph(weighted=True), (7, 5, 3), method, sees)
    when = sampler.neighbours.history._times
    count = epoch = 0
    while count < 100_000:
        epoch += 1
        for batch in sampler.draw(epoch, range(sampler.steps)):
            for hop in batch.hops:
                looked_at = batch.times[: hop.csr.num_rows].repeat_interleave(hop.csr.degrees())
                drawn = when[hop.edge_ids]
                assert bool((drawn <= looked_at if sees == "until" else drawn < looked_at).all())
                assert torch.equal(batch.times[hop.csr.indices.long()], looked_at)  # the time of the seed goes along
                count += drawn.numel()


def test_without_heeding_times_the_future_is_drawn():
    graph = timed_graph()
    shard, comm = whole_shard(graph, reorder=False), Communicator.alone()
    source = VertexSource(torch.arange(NODES), shard.global_ids, NODES, 0, comm, 0)
    sampler = Sampler(source, shard, PartitionBook(shard, comm), comm, Drawing((5,), "neighbour", 0), edge_ids=True)
    (batch,) = sampler.draw(1, [0])
    drawn = graph.adjacency.time[batch.hops[0].edge_ids]
    assert bool((drawn > graph.time[batch.nodes[:NODES].long()].repeat_interleave(batch.hops[0].csr.degrees())).any())


@pytest.mark.parametrize("method", METHODS)
def test_both_backends_draw_the_same_of_the_first_edges(method):
    history = moment_sampler(timed_graph(weighted=True), (4,), method, "until").neighbours.history
    rng = torch.Generator().manual_seed(1)
    moments = Moments(
        torch.randint(0, NODES, (300,), generator=rng).int(),
        torch.randint(-4, TIMES, (300,), generator=rng).double(),
    )
    given = history.edges, moments.nodes, torch.tensor([0, 100, 300]), torch.tensor([5, 6]), 4, method, True
    found, wanted = (module.sample(*given, history.first_edges(moments)) for module in (native, reference))
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_the_last_are_the_newest():
    sampler = moment_sampler(timed_graph(), (4,), "last", "until", batch=NODES)
    history, (batch,) = sampler.neighbours.history, sampler.draw(1, [0])
    hop = batch.hops[0]
    for row in range(NODES):
        vertex, time = int(batch.nodes[row]), float(batch.times[row])
        whole = history._times[int(history.csr.indptr[vertex]) : int(history.csr.indptr[vertex + 1])]
        drawn = history._times[hop.edge_ids[int(hop.csr.indptr[row]) : int(hop.csr.indptr[row + 1])]]
        assert drawn.tolist() == whole[whole <= time].sort().values[-4:].tolist()


# -- sums and exactness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("method", ["neighbour", "weighted", "labor"])
def test_a_sum_over_draws_has_the_expectation_of_the_sum_over_what_is_seen(method, reduce):
    plain = a_graph()
    rows, source = len(NEIGHBOURHOODS), plain.adjacency
    place = torch.arange(source.num_edges) - source.indptr[row_numbers(source.indptr)]
    graph = replace(plain, adjacency=replace(source, time=(place % 7).double()))  # all but those of time 6 are seen
    sampler = moment_sampler(
        graph.with_vertex_data(time=torch.full((graph.num_nodes,), 5.5)), (FANOUT,), method, "until"
    )
    keys = torch.randint(-(2**62), 2**62, (DRAWS,), generator=torch.Generator().manual_seed(8))
    nodes = torch.arange(rows).int().repeat(DRAWS)
    bounds, times = torch.arange(DRAWS + 1) * rows, torch.full((DRAWS * rows,), 5.5, dtype=torch.float64)
    drawn = sampler._own(nodes, bounds, keys, FANOUT, times)
    room = DRAWS * rows + graph.num_nodes
    hop = sampler._hop(drawn, CSR(drawn.indptr, drawn.sources, room, **drawn.edge_data), FANOUT)
    x = torch.zeros(room, 3, dtype=torch.float64)
    x[: graph.num_nodes] = graph.x
    whole = DistributedGraph(whole_shard(graph, reorder=False))
    weight = "edge" if method == "weighted" else None
    level = SampledLevel(whole.topology, hop, torch.arange(room), None)
    found = rows_of(whole.view_of(level).aggregate(x, reduce, weight))
    csr = filter_csr(graph.adjacency, graph.adjacency.time <= 5.5)
    assert csr.num_edges < source.num_edges
    counts = csr.weight.double() if method == "weighted" else torch.ones(csr.num_edges, dtype=torch.float64)
    wanted = torch.zeros(graph.num_nodes, 3, dtype=torch.float64)
    wanted.index_add_(0, row_numbers(csr.indptr), counts[:, None] * x[csr.indices.long()])
    totals = torch.zeros(graph.num_nodes, dtype=torch.float64).index_add_(0, row_numbers(csr.indptr), counts)
    if reduce == "mean":
        wanted = wanted / totals.clamp(min=1e-300)[:, None]
    check_expectation(found, wanted[:rows])


def moments_to_ask() -> Moments:
    rng = torch.Generator().manual_seed(7)
    nodes = torch.randint(0, NODES, (80,), generator=rng).int()
    return Moments(nodes, torch.randint(-4, TIMES + 1, (80,), generator=rng).double()).distinct()


def a_model(name: str, relations: int = 0) -> torch.nn.Module:
    torch.manual_seed(1)
    return build_model(ModelConfig(name=name, hidden=8, layers=2, heads=2), FEATURES, CLASSES, relations).double()


def at_times(comm: Communicator, shard, name: str, sees: str, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model says of some moments, each worker's share of them, with their places."""
    graph, book = DistributedGraph(shard, comm), PartitionBook(shard, comm)
    model = a_model(name, shard.num_relations)
    rows = MomentRows(graph, model, shard.x.double(), book, SampleConfig(**settings), sees, 0)
    wanted, mine = moments_to_ask(), slice(comm.worker, None, comm.num_workers)
    asked = Moments(book.positions(wanted.nodes.long())[mine], wanted.times[mine])
    return torch.arange(wanted.nodes.numel())[mine], rows.of(asked)


@pytest.mark.parametrize("sees", SEES)
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gin", "rgcn"])
def test_a_moment_is_a_vertex_of_the_graph_cut_at_its_time(name, sees):
    graph = timed_graph(relations=2 if name == "rgcn" else None)
    wanted, model = moments_to_ask(), a_model(name, graph.num_relations)
    _, found = at_times(Communicator.alone(), whole_shard(graph, reorder=False), name, sees)
    for time in wanted.times.unique():
        of_then = wanted.times == time
        when = graph.adjacency.time
        cut = filter_csr(replace(graph.adjacency, time=None), when <= time if sees == "until" else when < time)
        then = DistributedGraph(whole_shard(replace(graph, adjacency=cut), reorder=False))
        out = predict(model, then, graph.x.double())
        torch.testing.assert_close(found[of_then], out[wanted.nodes[of_then].long()], rtol=1e-10, atol=1e-12)


def test_means_over_all_that_is_seen_are_those_of_a_plain_loop():
    """Two layers of SAGE, computed edge by edge in numpy."""
    graph = timed_graph()
    model = a_model("sage")
    csr, x = graph.adjacency, graph.x.double().numpy()

    def rows(layer: int, vertex: int, time: float) -> np.ndarray:
        if layer == 0:
            return x[vertex]
        edges = range(int(csr.indptr[vertex]), int(csr.indptr[vertex + 1]))
        seen = [int(csr.indices[edge]) for edge in edges if float(csr.time[edge]) <= time]
        below = [rows(layer - 1, source, time) for source in seen]
        own = rows(layer - 1, vertex, time)
        mean = np.mean(below, axis=0) if below else np.zeros_like(own)
        of_layer = model.layers[layer - 1]
        root, neighbour, bias = (p.detach().numpy() for p in (of_layer.root, of_layer.neighbour, of_layer.bias))
        out = root @ own + neighbour @ mean + bias
        return np.maximum(out, 0) if layer == 1 else out

    wanted = moments_to_ask()
    _, found = at_times(Communicator.alone(), whole_shard(graph, reorder=False), "sage", "until")
    pairs = zip(wanted.nodes.tolist(), wanted.times.tolist(), strict=True)
    np.testing.assert_allclose(found.numpy(), np.stack([rows(2, *pair) for pair in pairs]), rtol=1e-10, atol=1e-12)


def several_at_times(comm, shards, cases):
    return [at_times(comm, shards[comm.worker], *case, **settings) for case, settings in cases]


def test_several_workers_say_the_same_of_moments():
    graph = timed_graph(loops=False)
    newest = {"method": "last", "fanout": (3, 2)}
    cases = [(("gcn", "until"), {}), (("sage", "before"), {"eval_fanout": (3, 2)}), (("gat", "until"), newest)]
    alone = several_at_times(Communicator.alone(), [whole_shard(graph, reorder=False)], cases)
    answers = run_workers(several_at_times, 3, make_shards(graph, spread(NODES, 3), 3), cases)
    for number, (_, wanted) in enumerate(alone):
        found = torch.zeros_like(wanted)
        for answer in answers:
            places, rows = answer[number]
            found[places] = rows
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


# -- training ---------------------------------------------------------------------------------------------------


def losses(comm, shards, plan, macrobatch, model, method):
    """Of the steps of two epochs; and the gradients of the last."""
    shard = shards[comm.worker]
    graph, x = DistributedGraph(shard, comm), shard.x.double()
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), FEATURES, CLASSES, 0).double()
    graph.noise.seed = 3
    config = SampleConfig(batch=16, fanout=(4, 3), method=method, macrobatch=macrobatch)
    rows, book = torch.arange(shard.num_nodes), PartitionBook(shard, comm)
    source = VertexSource(rows, shard.global_ids, 16, 9, comm, book.own.start, shard.time)
    loader = make_loader(graph, module, x, source, book, config, plan, 9, 2, sees="until")
    steps = Setup(graph, module, x, rows, book, source, loader).steps()
    found = list(train(comm, steps, module, 2, torch.optim.SGD(module.parameters(), 0.1)))
    return found, [p.grad.clone() for p in module.parameters()]


SAGE = {"name": "sage", "hidden": 8, "layers": 2, "norm": "batch", "dropout": 0.3}
GCN = {"name": "gcn", "hidden": 8, "layers": 2}


@pytest.mark.parametrize(
    ("model", "method"), [(SAGE, "neighbour"), (SAGE, "weighted"), (SAGE, "labor"), (GCN, "neighbour"), (GCN, "last")]
)
@pytest.mark.parametrize(
    ("workers", "plan", "macrobatch"),
    [(1, "macrobatch", 8), (2, "independent", 1), (3, "macrobatch", 8), (2, "split", 1), (3, "split", 8)],
)
def test_plans_workers_and_macrobatches_learn_alike(workers, plan, macrobatch, model, method):
    graph = timed_graph(weighted=method == "weighted", loops=False)
    wanted, gradients = losses(
        Communicator.alone(), [whole_shard(graph, reorder=False)], "independent", 1, model, method
    )
    shards = make_shards(graph, spread(NODES, workers), workers)
    for found, theirs in run_workers(losses, workers, shards, plan, macrobatch, model, method):
        assert found == pytest.approx(wanted, rel=1e-10)
        for mine, other in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(other, mine, rtol=1e-8, atol=1e-12)


# -- moments and borders ----------------------------------------------------------------------------------------


def test_moments_are_numbered_known_ones_first():
    known = Moments(torch.tensor([5, 2, 5]).int(), torch.tensor([1.0, 1.0, -torch.inf]))
    ends = Moments(torch.tensor([2, 2, 5, 9, 2]).int(), torch.tensor([1.0, 3.0, -torch.inf, 0.5, 3.0]))
    grown, numbers = known.numbered(ends)
    assert numbers.tolist() == [1, 3, 2, 4, 3]
    assert list(zip(*(part.tolist() for part in grown), strict=True))[:3] == [(5, 1.0), (2, 1.0), (5, -torch.inf)]
    assert grown.find(ends).tolist() == numbers.tolist()
    assert torch.equal(join_of(grown, numbers), join_of(ends))


def join_of(moments, which=slice(None)):
    return torch.stack([moments.nodes[which].double(), moments.times[which]])


def borders(comm, times, val, test):
    return time_borders(times[comm.worker :: comm.num_workers], val, test, comm, "edges")


@pytest.mark.parametrize("workers", [1, 3])
def test_borders_in_time_leave_so_many_behind_them(workers):
    times = torch.randn(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1e9
    times[:200] = -3.25
    ordered = times.sort().values
    for first, last in run_workers(borders, workers, times, 0.1, 0.2):
        assert (first, last) == (float(ordered[699]), float(ordered[799]))
