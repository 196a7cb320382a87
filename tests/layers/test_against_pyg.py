"""Each layer against PyG's own with the same weights: outputs and gradients."""

import copy

import pytest
import torch

from tests.layers.pyg_twins import TWINS, Sizes
from tests.partitioning.drawn import RELATIONS, graph_of
from weft.aggregate import DistributedGraph
from weft.layers import Transformer
from weft.partitioning import whole_shard

SIZES = Sizes(relations=RELATIONS)


def the_graph(weighted, loops):
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 20, (90, 2), generator=generator)
    if not loops:  # PyG and we differ in which of several loops counts
        pairs = pairs[pairs[:, 0] != pairs[:, 1]].unique(dim=0)
    return graph_of(20, [tuple(pair) for pair in pairs.tolist()], weighted)


def edge_index(graph):
    destination = torch.arange(graph.num_nodes).repeat_interleave(graph.adjacency.degrees())
    return torch.stack([graph.adjacency.indices.long(), destination])


def gradient_pairs(name, ours, pairs):
    """The gradients of PyG's parameters, and ours as they lie there."""
    bare = copy.deepcopy(ours)
    for to, of in zip(bare.parameters(), ours.parameters(), strict=True):
        to.data = of.grad
    _, as_theirs = TWINS[name].beside(bare, SIZES)
    return [(their.grad, mine) for (their, _), (_, mine) in zip(pairs, as_theirs, strict=True)]


@pytest.mark.parametrize("name", TWINS)
def test_same_as_pyg(name):
    torch.manual_seed(1)
    ours, theirs, pairs = TWINS[name].both(SIZES)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
        for other, mine in pairs:
            other.copy_(mine)
    theirs, ours = theirs.double(), ours.double()
    with_edges = name.endswith("-edges")
    weighted = name == "gcn" or with_edges
    graph = the_graph(weighted, loops=with_edges)  # of which attention to edges makes means of others
    x = torch.randn(20, SIZES.num_in, dtype=torch.float64)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    distributed = DistributedGraph(whole_shard(graph, reorder=False))
    distributed.noise.begin(1)
    out = ours(distributed.view, mine)
    csr = graph.adjacency
    extra = (csr.weight.double(),) if weighted else ()
    if with_edges:  # to PyG a weight is one of an edge's features
        extra = (torch.cat([csr.features.double(), csr.weight.double()[:, None]], 1),)
    if name.startswith("rgcn"):
        extra = (graph.adjacency.relation.long(),)
    wanted = theirs(other, edge_index(graph), *extra)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-10)
    probe = torch.randn_like(out)
    (out * probe).sum().backward()
    (wanted * probe).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-10)
    for their, mine in gradient_pairs(name, ours, pairs):
        torch.testing.assert_close(mine, their, rtol=1e-9, atol=1e-10)
    for key, parameter in ours.named_parameters():
        assert parameter.grad is not None
        unseen = isinstance(ours, Transformer) and key == "key_bias"  # the same on all logits of a row
        assert unseen or parameter.grad.abs().sum() > 0
