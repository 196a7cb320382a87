import pytest
import torch

from weft.graph.csr import row_numbers
from weft.graph.graph import Graph
from weft.graph.synthetic import synthetic
from weft.kernels import native_available
from weft.partitioning.order import community_order, locality_order
from weft.partitioning.shard import make_shards, whole_shard

pytestmark = pytest.mark.skipif(not native_available, reason="the native module is not built")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic("tiny", nodes=8000, communities=40, degree=16.0, homophily=0.9, seed=1)


def mean_distance(indptr: torch.Tensor, indices: torch.Tensor) -> float:
    """How far apart in storage the two ends of an edge lie."""
    return float((row_numbers(indptr) - indices.long()).abs().double().mean())


def test_neighbours_come_close(graph: Graph) -> None:
    before, after = whole_shard(graph, reorder=False).local, whole_shard(graph, reorder=True).local
    assert mean_distance(after.indptr, after.indices) < 0.5 * mean_distance(before.indptr, before.indices)


def test_communities_stay_together_inside_parts(graph: Graph) -> None:
    owner = torch.arange(graph.num_nodes) % 2
    for plain, ordered in zip(
        make_shards(graph, owner, 2, reorder=False), make_shards(graph, owner, 2, reorder=True), strict=True
    ):
        assert mean_distance(ordered.local.indptr, ordered.local.indices) < 0.5 * mean_distance(
            plain.local.indptr, plain.local.indices
        )


def test_small_graphs_keep_their_order() -> None:
    small = synthetic("tiny")
    assert torch.equal(locality_order(small.adjacency), torch.arange(small.num_nodes))


def test_large_graphs_are_reordered(graph: Graph) -> None:
    assert graph.num_edges > 100_000
    assert torch.equal(locality_order(graph.adjacency), community_order(graph.adjacency))
    assert not torch.equal(locality_order(graph.adjacency), torch.arange(graph.num_nodes))
