import torch
from hypothesis import given, settings
from torch import Tensor

from tests.partitioning.drawn import cut_graphs, graph_of
from weft.graph.graph import Graph
from weft.partitioning.quality import balance, quality
from weft.partitioning.shard import make_shards


@settings(max_examples=80, deadline=None)
@given(cut_graphs())
def test_counts_are_those_of_the_shards(drawn: tuple[Graph, Tensor, int]) -> None:
    graph, owner, num_parts = drawn
    found = quality(graph, owner, num_parts)
    shards = make_shards(graph, owner, num_parts)
    for part, shard in zip(found.parts, shards, strict=True):
        assert part.nodes == shard.num_nodes
        assert part.edges == shard.num_edges
        assert part.cut_edges == shard.remote.num_edges
        assert part.halo == shard.num_halo
        assert part.sent == sum(other.halo_counts[shard.worker] for other in shards)
        assert shard.train_mask is not None and part.train == int(shard.train_mask.sum())
    assert found.layer_bytes(16) == sum(shard.num_halo for shard in shards) * 16 * 4
    assert found.rows()


def test_numbers_of_a_small_cut() -> None:
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3), (3, 2), (1, 0)], weighted=False)
    found = quality(graph, torch.tensor([0, 0, 1, 1]), 2)
    assert (found.cut_edges, found.cut_fraction) == (2, 0.4)
    assert [part.halo for part in found.parts] == [0, 1]
    assert [part.sent for part in found.parts] == [1, 0]
    assert found.replication_factor == 1.25
    assert found.edge_balance == 3 / 2.5
    assert found.layer_bytes(128, 2) == 256


def test_balance_of_nothing() -> None:
    assert balance([0, 0]) == 1.0 and balance([3, 1]) == 1.5
