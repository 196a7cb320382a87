import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.partitioning.drawn import check_shards, graph_of, graphs
from weft.cli.show import partition_rows
from weft.config import make_config
from weft.errors import UserError
from weft.graph.csr import row_numbers
from weft.graph.graph import Graph
from weft.graph.synthetic import synthetic
from weft.kernels import native_available
from weft.kernels.backends import only
from weft.kernels.hash import hash_key
from weft.kernels.reference import sample
from weft.kernels.sampling import InEdges
from weft.partitioning import Request, assign, find_partitioner
from weft.partitioning.info import read_partition
from weft.partitioning.metis import symmetric_simple
from weft.partitioning.presample import MOST_WEIGHT, edge_weight, presample_owner
from weft.partitioning.quality import quality
from weft.partitioning.shard import make_shards
from weft.partitioning.touches import Touches, traffic
from weft.prepare import own_minibatches, partition, prepare_data
from weft.sample.presample import Counting, Presample, presampled, training_rows

pytestmark = pytest.mark.skipif(not native_available, reason="the native module is not built")
FEW = Presample(epochs=2, batch=32, fanouts=(4, 3))


@pytest.fixture(scope="module")
def communities() -> Graph:
    return synthetic("tiny", nodes=3000, communities=24, degree=12.0, homophily=0.8, seed=3)


@pytest.fixture(scope="module")
def aside(communities: Graph) -> Graph:
    """Training vertices lie in one class, so that minibatches hardly see the others."""
    assert communities.y is not None and communities.train_mask is not None
    return communities.with_vertex_data(train_mask=communities.train_mask & (communities.y == 1))


@pytest.fixture(scope="module")
def touched(aside: Graph) -> Touches:
    return Counting(aside, FEW, 0).touches([1, 2])


def counted_slowly(graph: Graph, config: Presample, seed: int, epochs: list[int]) -> tuple[list[int], ...]:
    """Draws of edges, rows computed, rows loaded: minibatch by minibatch, vertex by vertex."""
    source, ids = Counting(graph, config, seed).source, torch.arange(graph.num_nodes)
    csr = graph.adjacency
    in_edges = InEdges(csr.indptr, csr.indices, None, ids, ids)
    edges, computed, loaded = [0] * graph.num_edges, [0] * graph.num_nodes, [0] * graph.num_nodes
    for epoch in epochs:
        for step in range(source.steps):
            known = set(source.seeds(epoch, step).tolist())
            for hop, fanout in enumerate(config.fanouts):
                key = torch.tensor([hash_key(seed, epoch, step, hop)])
                for vertex in list(known):
                    computed[vertex] += 1
                    row, bounds = torch.tensor([vertex], dtype=torch.int32), torch.tensor([0, 1])
                    drawn = sample(in_edges, row, bounds, key, fanout, "neighbour", True)
                    assert drawn.positions is not None
                    for position in drawn.positions.tolist():
                        edges[position] += 1
                        known.add(int(csr.indices[position]))
            for vertex in known:
                loaded[vertex] += 1
    return edges, computed, loaded


@pytest.mark.parametrize("fanouts", [(-1, -1), (2, 1, 3)])
@pytest.mark.parametrize("directed", [False, True])
def test_counts_are_those_of_every_draw(fanouts: tuple[int, ...], directed: bool) -> None:
    graph = synthetic("tiny", nodes=60, communities=4, degree=6.0, train=0.3, directed=directed)
    config = Presample(batch=7, fanouts=fanouts)
    found = Counting(graph, config, 5).touches([1, 3])
    edges, computed, loaded = counted_slowly(graph, config, 5, [1, 3])
    assert found.edges.tolist() == edges
    assert found.computed.tolist() == computed
    assert found.loaded.tolist() == loaded
    rows = row_numbers(graph.adjacency.indptr).tolist()
    into = [sum(count for count, row in zip(edges, rows, strict=True) if row == v) for v in range(60)]
    assert found.load.tolist() == [sum(kinds) for kinds in zip(into, computed, loaded, strict=True)]


def touches_of(num_nodes: int, counts: dict[tuple[int, int], int], weight: list[float] | None = None) -> Touches:
    """(destination, source) -> how often it was drawn, in the order of both."""
    edges = [(source, row) for row, source in counts]
    csr = graph_of(num_nodes, edges, weighted=False, relations=0, edge_features=0).adjacency
    csr = replace(csr, weight=None if weight is None else torch.tensor(weight))
    nothing = torch.zeros(num_nodes, dtype=torch.int32)
    return Touches(csr, torch.tensor(list(counts.values()), dtype=torch.int32), nothing, nothing)


def test_traffic_of_a_small_cut() -> None:
    """0 -> 1 was drawn three times, 1 -> 2 once, 0 -> 2 never."""
    touches = touches_of(3, {(1, 0): 3, (2, 0): 0, (2, 1): 1})
    touches = replace(touches, computed=torch.tensor([0, 3, 1]), loaded=torch.tensor([1, 2, 0]))
    found = traffic(touches, torch.tensor([0, 1, 1]), 2)
    assert (found.edges, found.cut_edges, found.cut_fraction) == (4, 3, 0.75)
    assert found.loads == (1, 3 + 3 + 2 + 1 + 1) and found.balance == 10 / 5.5


def test_the_same_arguments_give_the_same_parts(communities: Graph) -> None:
    first, again, other = (presampled(communities, 4, seed, FEW) for seed in (5, 5, 6))
    assert torch.equal(first[0], again[0]) and first[1] == again[1]
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_balance_holds(communities: Graph, parts: int) -> None:
    owner, forecast = presampled(communities, parts, 1, FEW)
    assert owner.dtype == torch.int32 and owner.shape == (communities.num_nodes,)
    found = quality(communities, owner, parts)
    slack = parts / communities.num_nodes
    assert found.vertex_balance <= 1.05 + slack
    assert found.train_balance <= 1.10 + 2 * slack
    assert forecast.expected.balance <= 1.101
    assert forecast.realised.balance <= 1.2
    assert len(forecast.expected.loads) == parts and min(forecast.expected.loads) > 0


def test_fewer_sampled_edges_are_cut_than_by_metis(aside: Graph, touched: Touches) -> None:
    """Also in an epoch that was not counted."""
    owner, plain = presample_owner(aside, touched, 4), assign(aside, 4, "metis")
    later = Counting(aside, FEW, 0).touches([3])
    for counts in (touched, later):
        mine, theirs = (traffic(counts, each, 4) for each in (owner, plain))
        assert mine.edges == theirs.edges > 0
        assert mine.cut_fraction < 0.9 * theirs.cut_fraction
        assert mine.balance < theirs.balance + 0.1


def test_what_is_never_touched_lies_with_its_neighbours(aside: Graph, touched: Touches) -> None:
    owner = presample_owner(aside, touched, 4)
    untouched = touched.loaded == 0
    assert int(untouched.sum()) > aside.num_nodes // 10
    assert int(owner.min()) >= 0 and int(owner.max()) < 4
    assert quality(aside, owner, 4).vertex_balance <= 1.051
    rows, columns = row_numbers(aside.adjacency.indptr), aside.adjacency.indices.long()

    def apart(owner: Tensor) -> float:
        return float((owner[rows] != owner[columns])[untouched[rows]].double().mean())

    chance = []
    for seed in range(20):  # the same places in the parts, dealt out among the untouched
        dealt, order = (
            owner.clone(),
            torch.randperm(int(untouched.sum()), generator=torch.Generator().manual_seed(seed)),
        )
        dealt[untouched] = owner[untouched][order]
        chance.append(apart(dealt))
    assert apart(owner) < statistics.mean(chance) - 10 * statistics.stdev(chance)


def test_without_the_native_module_all_are_assigned(aside: Graph, touched: Touches) -> None:
    with only("reference"):
        owner = presample_owner(aside, touched, 4)
    assert int(owner.min()) >= 0 and quality(aside, owner, 4).vertex_balance < 1.5


@pytest.mark.parametrize(
    ("num_nodes", "edges", "parts"),
    [
        (3, [(0, 1), (1, 2)], 8),
        (6, [(0, 1), (0, 1), (1, 1)], 2),
        (9, [(0, i) for i in range(9)], 4),
        (5, [], 2),
        (4, [(i, j) for i in range(4) for j in range(4)], 3),
    ],
)
def test_odd_graphs(num_nodes: int, edges: list[tuple[int, int]], parts: int) -> None:
    train = torch.arange(num_nodes) < 2
    graph = graph_of(num_nodes, edges, weighted=True).with_vertex_data(train_mask=train, y=train.long())
    owner, forecast = presampled(graph, parts, 0, Presample(epochs=1, batch=2, fanouts=(2, 2)))
    check_shards(graph, make_shards(graph, owner, parts))
    assert sum(forecast.expected.loads) > 0


def test_a_directed_graph() -> None:
    graph = synthetic("relational", nodes=1000)
    owner, forecast = presampled(graph, 3, 0, FEW)
    check_shards(graph, make_shards(graph, owner, 3))
    assert 0 < forecast.realised.cut_fraction < 0.667


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_what_metis_sees_of_weights(graph: Graph, data: st.DataObject) -> None:
    """Both directions of an edge, and repeated ones, weigh together."""
    csr = graph.adjacency
    weight = np.array(data.draw(st.lists(st.integers(1, 9), min_size=csr.num_edges, max_size=csr.num_edges)), np.int32)
    dense = np.zeros((graph.num_nodes, graph.num_nodes), np.int64)
    for row, source, value in zip(row_numbers(csr.indptr).tolist(), csr.indices.tolist(), weight, strict=True):
        if source != row:
            dense[row, source] += value
            dense[source, row] += value
    assert (symmetric_simple(csr, weight).toarray() == dense).all()


def test_draws_are_shared_out_among_the_edges_that_they_were_drawn_from() -> None:
    counts = {(0, 1): 3, (0, 2): 0, (0, 3): 0, (1, 0): 2, (2, 0): 0}
    assert touches_of(4, counts).expected().tolist() == [1, 1, 1, 2, 0]
    by_weight = touches_of(4, counts, [0.5, 0.25, 0.25, 7.0, 1.0])
    assert by_weight.expected().tolist() == [1.5, 0.75, 0.75, 2, 0]


def test_weights_are_in_proportion_and_can_be_summed() -> None:
    counts = {(0, 1): 3, (0, 2): 0, (0, 3): 0, (1, 0): 2, (2, 0): 0}
    assert edge_weight(touches_of(4, counts)).tolist() == [80, 80, 80, 160, 0]
    hub = {**{(0, source): int(source == 5) for source in range(1, 999)}, (1, 0): 2**30, (2, 0): 2**30}
    weight = edge_weight(touches_of(999, hub))
    assert weight[4] == 1 and weight[:998].sum() == 1, "what hardly ever is drawn is left out, what was drawn is not"
    assert weight[998] == weight[999] > 0 and 2 * int(weight.astype(np.int64).sum()) <= MOST_WEIGHT + 2


def test_training_vertices_are_those_that_training_takes() -> None:
    graph = graph_of(6, [(0, 1)], weighted=False)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1]]).bool()
    y = torch.tensor([0, -1, 1, 2, 3, 1])
    graph = graph.with_vertex_data(train_mask=mask, y=y)
    assert training_rows(graph).tolist() == [0, 3, 5]
    assert training_rows(graph, 0).tolist() == [0] and training_rows(graph, 1).tolist() == [3, 5]


def test_wrong_arguments(communities: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    for mask in (None, torch.zeros(communities.num_nodes, dtype=torch.bool)):
        with pytest.raises(UserError, match=r"no training vertices.*use method 'metis'"):
            presampled(communities.with_vertex_data(train_mask=mask), 2)
    with pytest.raises(UserError, match="0 parts"):
        presampled(communities, 0)
    with pytest.raises(UserError, match="1 or more, or -1 for all"):
        Presample(fanouts=(5, 0))
    with pytest.raises(UserError, match="0 epochs"):
        Presample(epochs=0)
    with pytest.raises(UserError, match="has no weights"):
        presampled(communities, 2, 0, replace(FEW, method="weighted"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"presample needs pymetis.*'\.\[partition\]'"):
        assign(communities, 2, "presample")


def test_the_method_by_name(communities: Graph) -> None:
    owner, forecast = find_partitioner("presample").run(communities, Request(4, 5, minibatches=FEW))
    expected, foreseen = presampled(communities, 4, 5, FEW)
    assert torch.equal(owner, expected) and forecast == foreseen
    with pytest.raises(UserError, match=r"no training vertices.*use method 'metis'"):
        assign(communities.with_vertex_data(train_mask=None), 2, "presample")


def test_the_folder_keeps_what_was_expected(communities: Graph, tmp_path: Path) -> None:
    written = partition(communities, 2, tmp_path / "parts", "presample", presample=FEW)
    info = read_partition(tmp_path / "parts")
    assert info == written and info.method == "presample" and info.forecast is not None
    assert info.forecast.expected != info.forecast.realised
    shown = dict(partition_rows(info))
    assert shown["minibatches counted"] == "those of 2 epoch(s), batch 32, fan-out 4, 3"
    assert "expected" in shown["sampled edges cut"] and "in epoch 3" in shown["minibatch load balance"]


def test_a_run_counts_its_own_minibatches(tmp_path: Path) -> None:
    config = make_config({
        "data": "synthetic:tiny", "workers": 2, "strategy": "batchgnn", "model": {"name": "sage", "layers": 2},
        "sample": {"batch": 50, "method": "labor"}, "partition": {"method": "presample", "presample_epochs": 1},
    })  # fmt: skip
    assert own_minibatches(config) == Presample(1, 50, (15, 10), "labor", 0)
    prepare_data(config, tmp_path)
    forecast = read_partition(tmp_path / "parts").forecast
    assert forecast is not None and (forecast.epochs, forecast.batch, forecast.fanouts) == (1, 50, (15, 10))
    links = make_config({"strategy": "batchgnn", "train": {"task": "links"}, "partition": {"method": "presample"}})
    with pytest.raises(UserError, match=r"use partition\.method=metis"):
        own_minibatches(links)
