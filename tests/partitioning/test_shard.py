from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.partitioning.drawn import check_shards, cut_graphs, graph_edges, graph_of, graphs
from weft.errors import UserError
from weft.graph.csr import rows_ascend
from weft.graph.graph import Graph
from weft.partitioning.shard import make_shards, whole_shard


@settings(max_examples=150, deadline=None)
@given(cut_graphs())
def test_shards_hold_the_graph(drawn: tuple[Graph, Tensor, int]) -> None:
    graph, owner, parts = drawn
    shards = make_shards(graph, owner, parts)
    check_shards(graph, shards)
    for shard in shards:
        assert all(owner[i] == shard.worker for i in shard.global_ids)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_whole_shard_is_the_graph(graph: Graph) -> None:
    for reorder in (False, True):
        shard = whole_shard(graph, reorder)
        check_shards(graph, [shard])
        assert shard.num_halo == 0 and shard.remote.num_edges == 0


def test_whole_shard_without_reordering_copies_nothing() -> None:
    graph = graph_of(5, [(0, 1), (2, 1), (4, 4)], weighted=True)
    shard = whole_shard(graph, reorder=False)
    assert graph.x is not None and shard.x is not None
    assert shard.x.data_ptr() == graph.x.data_ptr()
    assert shard.local.indices.data_ptr() == graph.adjacency.indices.data_ptr()


def test_rows_in_any_order_are_made_to_ascend() -> None:
    ascending = graph_of(4, [(3, 0), (1, 0), (2, 0), (0, 2), (3, 2)], weighted=True)
    csr = ascending.adjacency
    shuffled = csr.pick(torch.tensor([2, 0, 1, 4, 3]))
    assert rows_ascend(csr) and not rows_ascend(shuffled)
    graph = replace(ascending, adjacency=shuffled)
    check_shards(graph, make_shards(graph, torch.tensor([0, 0, 1, 1]), 2))
    check_shards(graph, [whole_shard(graph, reorder=False)])
    assert sorted(graph_edges(graph)) == sorted(graph_edges(ascending))


@pytest.mark.parametrize("owner", [[0, 1], [0, 1, 2], [0, -1, 1]])
def test_a_wrong_assignment_is_refused(owner: list[int]) -> None:
    graph = graph_of(3, [(0, 1)], weighted=False)
    with pytest.raises(UserError, match="assignment"):
        make_shards(graph, torch.tensor(owner), 2)
