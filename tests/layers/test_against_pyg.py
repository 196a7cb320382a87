"""Each layer against PyG's own with the same weights: outputs and gradients."""

import pytest
import torch

from tests.partition.drawn import RELATIONS, graph_of
from weft.aggregate import GraphView
from weft.layers import GAT, GCN, GIN, RGCN, SAGE, GATv2, Transformer
from weft.partition import whole_shard

nn = pytest.importorskip("torch_geometric.nn")
NUM_IN, NUM_OUT, HEADS = 5, 3, 2


def the_graph(weighted):
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 20, (90, 2), generator=generator)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].unique(dim=0)  # PyG and we differ in which of several loops counts
    return graph_of(20, [tuple(pair) for pair in pairs.tolist()], weighted)


def edge_index(graph):
    destination = torch.arange(graph.num_nodes).repeat_interleave(graph.adjacency.degrees())
    return torch.stack([graph.adjacency.indices.long(), destination])


def pyg_gin(ours):
    first, second = torch.nn.Linear(NUM_IN, NUM_OUT), torch.nn.Linear(NUM_OUT, NUM_OUT)
    norm = torch.nn.BatchNorm1d(NUM_OUT)
    theirs = nn.GINConv(torch.nn.Sequential(first, norm, torch.nn.ReLU(), second), train_eps=True)  # resets weights
    copy(first.weight, ours.first), copy(first.bias, ours.first_bias)
    copy(second.weight, ours.second), copy(second.bias, ours.bias)
    copy(norm.weight, ours.norm.gain), copy(norm.bias, ours.norm.shift), copy(theirs.eps, ours.eps[None])
    return theirs


def pyg_gcn(ours):
    theirs = nn.GCNConv(NUM_IN, NUM_OUT)
    copy(theirs.lin.weight, ours.weight), copy(theirs.bias, ours.bias)
    return theirs


def pyg_sage(ours):
    theirs = nn.SAGEConv(NUM_IN, NUM_OUT, aggr=ours.reduce)
    copy(theirs.lin_l.weight, ours.neighbour), copy(theirs.lin_l.bias, ours.bias), copy(theirs.lin_r.weight, ours.root)
    return theirs


def pyg_gat(ours):
    theirs = nn.GATConv(NUM_IN, NUM_OUT, heads=HEADS)
    copy(theirs.lin.weight, ours.weight), copy(theirs.bias, ours.bias)
    copy(theirs.att_src, ours.source[None]), copy(theirs.att_dst, ours.target[None])
    return theirs


def pyg_gatv2(ours):
    theirs = nn.GATv2Conv(NUM_IN, NUM_OUT, heads=HEADS)
    copy(theirs.lin_l.weight, ours.key), copy(theirs.lin_l.bias, ours.key_bias)
    copy(theirs.lin_r.weight, ours.query), copy(theirs.lin_r.bias, ours.query_bias)
    copy(theirs.att, ours.att[None]), copy(theirs.bias, ours.bias)
    return theirs


def pyg_transformer(ours):
    theirs = nn.TransformerConv(NUM_IN, NUM_OUT, heads=HEADS, concat=ours.concat)
    copy(theirs.lin_query.weight, ours.query), copy(theirs.lin_query.bias, ours.query_bias)
    copy(theirs.lin_key.weight, ours.key), copy(theirs.lin_key.bias, ours.key_bias)
    copy(theirs.lin_value.weight, ours.value), copy(theirs.lin_value.bias, ours.value_bias)
    copy(theirs.lin_skip.weight, ours.root), copy(theirs.lin_skip.bias, ours.bias)
    return theirs


def pyg_rgcn(ours):
    bases = None if ours.coefficients is None else ours.coefficients.shape[1]
    theirs = nn.RGCNConv(NUM_IN, NUM_OUT, RELATIONS, num_bases=bases)
    copy(theirs.weight, ours.neighbour.view(NUM_OUT, -1, NUM_IN).permute(1, 2, 0))
    copy(theirs.root, ours.root.t()), copy(theirs.bias, ours.bias)
    if bases is not None:
        copy(theirs.comp, ours.coefficients)
    return theirs


def copy(to, what):
    with torch.no_grad():
        to.copy_(what)


CASES = {
    "gcn": (lambda: GCN(NUM_IN, NUM_OUT), pyg_gcn),
    "sage-mean": (lambda: SAGE(NUM_IN, NUM_OUT, "mean"), pyg_sage),
    "sage-max": (lambda: SAGE(NUM_IN, NUM_OUT, "max"), pyg_sage),
    "sage-sum": (lambda: SAGE(NUM_IN, NUM_OUT, "sum"), pyg_sage),
    "gat": (lambda: GAT(NUM_IN, NUM_OUT, HEADS), pyg_gat),
    "gatv2": (lambda: GATv2(NUM_IN, NUM_OUT, HEADS), pyg_gatv2),
    "transformer": (lambda: Transformer(NUM_IN, NUM_OUT, HEADS), pyg_transformer),
    "transformer-mean": (lambda: Transformer(NUM_IN, NUM_OUT, HEADS, concat=False), pyg_transformer),
    "gin": (lambda: GIN(NUM_IN, NUM_OUT), pyg_gin),
    "rgcn": (lambda: RGCN(NUM_IN, NUM_OUT, RELATIONS), pyg_rgcn),
    "rgcn-bases": (lambda: RGCN(NUM_IN, NUM_OUT, RELATIONS, bases=2), pyg_rgcn),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_pyg(name):
    torch.manual_seed(1)
    build, theirs_of = CASES[name]
    ours = build()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    theirs = theirs_of(ours).double()
    ours.double()
    weighted = name == "gcn"
    graph = the_graph(weighted)
    x = torch.randn(20, NUM_IN, dtype=torch.float64)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    view = GraphView(whole_shard(graph, reorder=False))
    view.noise.begin(1)
    out = ours(view, mine)
    extra = (graph.adjacency.weight.double(),) if weighted else ()
    if name.startswith("rgcn"):
        extra = (graph.adjacency.relation.long(),)
    wanted = theirs(other, edge_index(graph), *extra)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-10)
    probe = torch.randn_like(out)
    (out * probe).sum().backward()
    (wanted * probe).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-10)
    for key, parameter in ours.named_parameters():
        assert parameter.grad is not None
        unseen = isinstance(ours, Transformer) and key == "key_bias"  # the same on all logits of a row
        assert unseen or parameter.grad.abs().sum() > 0
