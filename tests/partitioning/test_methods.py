from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.partitioning.drawn import check_shards, graph_of, graphs
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.graph.synthetic import synthetic
from weft.kernels import native_available
from weft.kernels.backends import only
from weft.partitioning import Balance, assign, find_partitioner, list_partitioners
from weft.partitioning import metis as metis_module
from weft.partitioning.metis import combined_weight, symmetric_simple
from weft.partitioning.quality import quality
from weft.partitioning.shard import make_shards

METHODS = [one.name for one in list_partitioners() if not one.requires.minibatches]
NATIVE = [one.name for one in list_partitioners() if one.requires.native]
pytestmark = pytest.mark.skipif(not native_available, reason="the native module is not built")


@pytest.fixture(scope="module")
def communities() -> Graph:
    return synthetic("tiny", nodes=3000, communities=24, degree=12.0, homophily=0.8, seed=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_balance_holds(communities: Graph, method: str, parts: int) -> None:
    owner = assign(communities, parts, method, seed=1)
    assert owner.dtype == torch.int32 and owner.shape == (communities.num_nodes,)
    found = quality(communities, owner, parts)
    slack = parts / communities.num_nodes  # one vertex more than the bound, where it does not divide
    assert found.vertex_balance <= 1.05 + slack
    assert found.train_balance <= 1.10 + 2 * slack
    assert found.edge_balance <= 1.101
    assert min(part.nodes for part in found.parts) > 0


@pytest.mark.parametrize("method", ["stream", "community", "metis"])
def test_a_tighter_balance_is_kept(communities: Graph, method: str) -> None:
    owner = assign(communities, 4, method, balance=Balance(nodes=1.01, edges=1.02, train=1.01))
    found = quality(communities, owner, 4)
    assert found.vertex_balance <= 1.0101 and found.edge_balance <= 1.0201 and found.train_balance <= 1.0101


def test_few_training_vertices_are_spread(communities: Graph) -> None:
    """Sixteen training vertices that all lie in one community still end in sixteen / P per part."""
    train = torch.zeros(communities.num_nodes, dtype=torch.bool)
    assert communities.y is not None
    train[(communities.y == 0).nonzero().squeeze(1)[:16]] = True
    graph = communities.with_vertex_data(train_mask=train)
    for method in METHODS:
        counts = [part.train for part in quality(graph, assign(graph, 4, method), 4).parts]
        assert max(counts) <= 5, (method, counts)


def test_methods_cut_less_than_chance(communities: Graph) -> None:
    cut = {name: quality(communities, assign(communities, 4, name), 4).cut_edges for name in METHODS}
    assert cut["stream"] < 0.9 * cut["random"]
    assert cut["community"] < 0.6 * cut["random"]
    assert cut["metis"] < 0.6 * cut["random"]


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides(communities: Graph, method: str) -> None:
    first, again = assign(communities, 4, method, seed=5), assign(communities, 4, method, seed=5)
    assert torch.equal(first, again)
    assert not torch.equal(first, assign(communities, 4, method, seed=6))


@settings(max_examples=80, deadline=None)
@given(graphs(), st.integers(1, 20), st.sampled_from(["random", *NATIVE]), st.integers(0, 3))
def test_any_graph_any_number_of_parts(graph: Graph, parts: int, method: str, seed: int) -> None:
    """Directed, empty, isolated, more parts than vertices."""
    owner = assign(graph, parts, method, seed)
    check_shards(graph, make_shards(graph, owner, parts))
    if parts >= graph.num_nodes and method == "random":
        assert len(set(owner.tolist())) == graph.num_nodes


@pytest.mark.parametrize(
    ("num_nodes", "edges", "parts"),
    [
        (0, [], 3),
        (1, [(0, 0)], 2),
        (5, [], 2),
        (3, [(0, 1)], 8),
        (6, [(0, 1), (0, 1), (1, 1)], 2),
        (9, [(0, i) for i in range(9)], 4),
        (4, [(i, j) for i in range(4) for j in range(4)], 3),
    ],
)
def test_metis_on_odd_graphs(num_nodes: int, edges: list[tuple[int, int]], parts: int) -> None:
    graph = graph_of(num_nodes, edges, weighted=True)
    check_shards(graph, make_shards(graph, assign(graph, parts, "metis"), parts))


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_what_metis_sees(graph: Graph) -> None:
    """Symmetric, simple, no self-loops, each undirected edge weighted by its directed ones."""
    seen = symmetric_simple(graph.adjacency)
    dense = np.zeros((graph.num_nodes, graph.num_nodes), np.int64)
    csr = graph.adjacency
    for row in range(graph.num_nodes):
        for source in csr.indices[int(csr.indptr[row]) : int(csr.indptr[row + 1])].tolist():
            if source != row:
                dense[row, source] += 1
                dense[source, row] += 1
    assert scipy.sparse.issparse(seen) and (seen.toarray() == dense).all()
    assert seen.nnz == np.count_nonzero(dense)


def test_rare_loads_do_not_outweigh_the_rest() -> None:
    load = np.ones((1000, 2))
    load[:, 1] = 0
    load[:5, 1] = 1
    assert combined_weight(load).max() == combined_weight(load).min() > 0


def test_wrong_arguments(communities: Graph) -> None:
    with pytest.raises(UserError, match="did you mean 'metis'"):
        assign(communities, 2, "mettis")
    with pytest.raises(UserError, match="0 parts"):
        assign(communities, 0, "random")
    with pytest.raises(UserError, match=r"balance of 0\.9 cannot be met"):
        assign(communities, 2, "stream", balance=Balance(nodes=0.9))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os; os.abort()", "ended by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
        ("raise MemoryError('no room')", "no room"),
        ("import sys; sys.exit('the graph is too large')", "the graph is too large"),
    ],
)
def test_a_crash_of_metis_is_a_sentence(
    communities: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    (tmp_path / "process.py").write_text(script)
    monkeypatch.setattr(metis_module, "PROCESS", tmp_path / "process.py")
    with pytest.raises(UserError, match=message) as raised:
        assign(communities, 2, "metis")
    assert "use method" in str(raised.value)


def test_without_pymetis(communities: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_partitioner("auto").name == "metis"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_partitioner("auto").name == "community"
    with pytest.raises(UserError, match=r"'\.\[partition\]'"):
        assign(communities, 2, "metis")


@pytest.mark.parametrize("method", NATIVE)
def test_without_the_native_module(communities: Graph, method: str) -> None:
    with only("reference"), pytest.raises(UserError, match="native module"):
        assign(communities, 2, method)
