"""elu with bias and dropout, and per-head dots of rows, equal what torch says."""

import pytest
import torch
from torch.nn import functional

from weft import kernels

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("with_bias", [True, False])
def test_elu_dropout_and_its_gradient(p: float, with_bias: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(3000, 37, dtype=torch.float64, requires_grad=True)
    x.data[5] = 0.0  # zeros of elu are no sign of dropout
    bias = torch.zeros(37, dtype=torch.float64, requires_grad=True)
    ids, grad = torch.randperm(3000), torch.randn(3000, 37, dtype=torch.float64)
    mask = kernels.dropout_rows(torch.ones_like(x), ids, p, 7) if p else torch.ones(3000, 37, dtype=torch.float64)
    expected = functional.elu(x + bias) * mask
    expected.backward(grad)
    out = kernels.bias_elu_dropout(x.detach(), bias.detach() if with_bias else None, ids, p, 7)
    torch.testing.assert_close(out, expected.detach())
    found = kernels.elu_dropout_backward(grad, out, ids, p, 7)
    assert x.grad is not None and bias.grad is not None
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(found.sum(0), bias.grad)


def test_rowwise_head_dot() -> None:
    a, b = torch.randn(2000, 24), torch.randn(2000, 24)
    expected = (a * b).view(2000, 4, 6).sum(-1)
    torch.testing.assert_close(kernels.rowwise_head_dot(a, b, 4), expected)
