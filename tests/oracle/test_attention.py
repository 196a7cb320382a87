"""Attention: huge logits, coefficients that sum to one, gradcheck, and every parameter moving in training."""

import pytest
import torch

from tests.partitioning.drawn import graph_of
from tests.workers import DEVICE
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.errors import UserError
from weft.layers import GAT, GATv2, ModelConfig, Transformer, build_model
from weft.partitioning import whole_shard


def a_view(num_nodes=12, num_edges=40):
    pairs = torch.randint(0, num_nodes, (num_edges, 2), generator=torch.Generator().manual_seed(4)).tolist()
    shard = whole_shard(graph_of(num_nodes, [tuple(pair) for pair in pairs], False), reorder=False)
    return DistributedGraph(shard.to(DEVICE), Communicator.alone(DEVICE)).view


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_coefficients_sum_to_one_even_with_huge_logits(scale):
    """With all values 1 the output is the sum of the coefficients."""
    view, heads = a_view(), 3
    terms = scale * torch.randn(2, view.num_rows, heads, dtype=torch.float64, device=DEVICE)
    out = view.attend(torch.ones(view.num_rows, heads * 2, dtype=torch.float64, device=DEVICE), terms[0], terms[1])
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-12, atol=1e-12)
    query, key = scale * torch.randn(2, view.num_rows, heads * 4, dtype=torch.float64, device=DEVICE)
    out = view.attend_dot(
        query, key / scale, torch.ones(view.num_rows, heads * 2, dtype=torch.float64, device=DEVICE), heads
    )
    sees = (view.in_degrees > 0).double()[:, None]
    assert 0 < sees.sum() < view.num_rows, "no vertex is without in-edges"
    torch.testing.assert_close(out, sees.expand_as(out), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradcheck(dropout):
    view = a_view(6, 15)
    view.noise.begin(None)

    def attend(values, source, target):
        view.noise.begin(3)  # the same draws at every call
        return view.attend(values, source, target, dropout=dropout)

    def dynamic(query, key, att):
        view.noise.begin(3)
        return view.attend_dynamic(query, key, att, dropout=dropout)

    def dot(query, key, values):
        view.noise.begin(3)
        return view.attend_dot(query, key, values, heads=2, dropout=dropout)

    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.float64, device=DEVICE, requires_grad=True)

    torch.manual_seed(0)
    assert torch.autograd.gradcheck(attend, (leaf(6, 4), leaf(6, 2), leaf(6, 2)))
    assert torch.autograd.gradcheck(dynamic, (leaf(6, 4), leaf(6, 4), leaf(2, 2)))
    assert torch.autograd.gradcheck(dot, (leaf(6, 4), leaf(6, 4), leaf(6, 6)))


def test_a_scale_of_ones_own():
    view = a_view()
    rows = torch.randn(3, view.num_rows, 8, dtype=torch.float64, device=DEVICE)
    given = view.attend_dot(*rows, heads=2, scale=0.5)
    torch.testing.assert_close(given, view.attend_dot(*rows, heads=2), rtol=0, atol=0)  # 1 / sqrt(4)
    assert not torch.allclose(given, view.attend_dot(*rows, heads=2, scale=1.0))
    with pytest.raises(UserError, match="do not split into 3 equal heads"):
        view.attend_dot(*rows, heads=3)


@pytest.mark.parametrize("kind", [GAT, GATv2, Transformer])
def test_dropped_coefficients_keep_the_mean(kind):
    """Over many draws the output with dropout averages to the output without it."""
    view = a_view()
    torch.manual_seed(0)
    layer = kind(3, 2, heads=2, dropout=0.5).to(DEVICE).double()
    x = torch.randn(view.num_rows, 3, dtype=torch.float64, device=DEVICE)
    draws = []
    with torch.no_grad():
        for epoch in range(2000):
            view.noise.begin(epoch)
            draws.append(layer(view, x))
        view.noise.begin(None)
        wanted = layer(view, x)
    stack = torch.stack(draws)
    error = stack.std(0) / len(draws) ** 0.5
    assert (stack.std(0) > 0).any(), "nothing was dropped"
    assert ((stack.mean(0) - wanted).abs() <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
def test_every_parameter_moves(name):
    view = a_view()
    torch.manual_seed(0)
    model = build_model(ModelConfig(name=name, layers=2, hidden=4, heads=2, activation="elu"), 3, 4).to(DEVICE)
    before = {key: value.clone() for key, value in model.named_parameters()}
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    view.noise.begin(1)
    loss = torch.nn.functional.cross_entropy(model(view, view.shard.x), view.shard.y.clamp(min=0))
    loss.backward()
    optimiser.step()
    for key, value in model.named_parameters():
        if name == "transformer" and key.endswith("key_bias"):  # adds the same to all logits of a destination
            torch.testing.assert_close(value.grad, torch.zeros_like(value), rtol=0, atol=1e-6)
        else:
            assert not torch.equal(value, before[key]), key
