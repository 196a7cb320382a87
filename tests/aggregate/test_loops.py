"""Self-loops and weighted degrees: which loop counts where there are several, and degrees that have no root."""

import pytest
import torch

from weft import UserError
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import from_edges
from weft.partitioning import whole_shard
from weft.sample import PartitionBook
from weft.sample.neighbours import Neighbours


@pytest.mark.parametrize("relation", [None, [2, 0, 1, 0, 1]])
def test_of_several_self_loops_the_last_given_counts(relation):
    """As in PyG, whatever their relations: in the full graph and where it is sampled."""
    norm = pytest.importorskip("torch_geometric.nn.conv.gcn_conv").gcn_norm
    source, destination, weight = [1, 1, 1, 0, 2], [1, 1, 1, 1, 0], [5.0, 2.0, 3.0, 7.0, 1.0]
    graph = from_edges(source, destination, weight=weight, relation=relation, num_nodes=3)
    shard = whole_shard(graph, reorder=False)
    out = DistributedGraph(shard).view.aggregate(torch.eye(3, dtype=torch.float64), "sum", "symmetric")
    edges, scale = norm(torch.tensor([source, destination]), torch.tensor(weight, dtype=torch.float64), 3)
    wanted = torch.zeros(3, 3, dtype=torch.float64).index_put_((edges[1], edges[0]), scale, accumulate=True)
    torch.testing.assert_close(out, wanted)
    kept = Neighbours(shard, PartitionBook(shard, Communicator.alone()), loops_apart=True).loop_weight
    assert kept is not None and kept.tolist() == [1.0, 3.0, 1.0]


def test_of_equal_loops_the_first_given_stays():
    graph = from_edges(
        [1, 1, 0, 1, 1], [1, 1, 1, 1, 1], weight=[1.0, 2.0, 9.0, 3.0, 4.0], relation=[1, 0, 1, 1, 0], num_nodes=2,
        drop_duplicates=True,
    )  # fmt: skip
    csr = graph.adjacency
    assert csr.weight is not None and csr.relation is not None
    assert csr.weight.tolist() == [9.0, 1.0, 2.0] and csr.relation.tolist() == [1, 1, 0]


def test_a_negative_degree_is_refused_by_name():
    graph = from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 2], weight=[1.0, -3.0, -1.0, 1.0, 0.5], num_nodes=4)
    shard = whole_shard(graph, reorder=False)
    message = "the edges into vertex 2 of graph add up to -1.5 with its self-loop"
    with pytest.raises(UserError, match=message):
        DistributedGraph(shard).view.aggregate(torch.eye(4), "sum", "symmetric")
    with pytest.raises(UserError, match=message):
        Neighbours(shard, PartitionBook(shard, Communicator.alone()), loops_apart=True).symmetric_scale.sum()
    DistributedGraph(shard).view.aggregate(torch.eye(4), "mean", "edge")
