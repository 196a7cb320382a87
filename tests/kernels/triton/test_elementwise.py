"""Dropout by hash, activations with bias and dropout, per-head dots: those of the CPU, the masks to the bit."""

import pytest
import torch

from tests.kernels.graphs import randn, tolerance
from tests.kernels.triton.sides import DEVICE, close
from weft import kernels
from weft.kernels import reference

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def scalar_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


@pytest.mark.parametrize("key", [0, 1, 12345678901234567890, -7, 2**62 + 1])
@pytest.mark.parametrize("p", [0.3, 0.75])
def test_the_mask_is_that_of_the_cpu_to_the_bit(key, p):
    ids = torch.tensor([0, 1, 77, 2**40 + 3, -1])
    ours = kernels.dropout_rows(torch.ones(5, 70, device=DEVICE), ids.to(DEVICE), p, key)
    assert torch.equal(ours.cpu(), reference.dropout_rows(torch.ones(5, 70), ids, p, key))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "p"), [(0, 3, 0.5), (3, 1, 0.5), (19, 130, 0.1), (2, 257, 0.0)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_fused_passes(dtype, rows, width, p, with_bias):
    x, grad = randn(rows, width, dtype=dtype), randn(rows, width, dtype=dtype, seed=2)
    bias = randn(width, dtype=scalar_of(dtype), seed=1) if with_bias else None
    ids = torch.arange(rows) * 1_000_003

    def run(side, device):
        here = [None if t is None else t.to(device, copy=True) for t in (x, bias, ids, grad)]
        x_, bias_, ids_, grad_ = here
        relu = side.bias_relu_dropout_(x_.clone(), bias_, ids_, p, 7)
        elu = side.bias_elu_dropout(x_, bias_, ids_, p, 7)
        backward = side.relu_dropout_backward(grad_, relu, p), side.elu_dropout_backward(grad_, elu, ids_, p, 7)
        return relu, elu, *backward, side.relu_dropout_backward(grad_, relu, p, into=grad_)

    close(run(kernels, DEVICE), run(reference, "cpu"), **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elu_keeps_its_digits_near_zero(dtype):
    x = -torch.logspace(-12, 1, 60, dtype=torch.float64).to(dtype)[:, None]
    found = kernels.bias_elu_dropout(x.to(DEVICE), None, None, 0.0, 0)
    torch.testing.assert_close(found.cpu().double(), torch.expm1(x.double()), rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_nan_is_not_hidden_by_relu():
    x = torch.tensor([[float("nan"), -1.0, 2.0] * 5], device=DEVICE)
    assert torch.isnan(kernels.bias_relu_dropout_(x.clone(), None, None, 0.0, 0)[0, ::3]).all()
    assert torch.isnan(kernels.bias_elu_dropout(x, None, None, 0.0, 0)[0, ::3]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "width"), [(0, 2, 3), (7, 1, 1), (40, 3, 17), (3, 2, 150)])
def test_head_dots(dtype, rows, heads, width):
    scalar = scalar_of(dtype)
    z, att, grad = (
        randn(rows, heads * width, dtype=dtype),
        randn(heads, width, dtype=scalar),
        randn(rows, heads, dtype=scalar),
    )
    b, d_z, d_att = (
        randn(*z.shape, dtype=dtype, seed=1),
        randn(*z.shape, dtype=scalar, seed=3),
        randn(*att.shape, dtype=scalar),
    )

    def run(side, device):
        z_, att_, grad_, b_, d_z_, d_att_ = (t.to(device, copy=True) for t in (z, att, grad, b, d_z, d_att))
        only_att = d_att_.clone()
        side.head_dot_backward(z_, att_, grad_, d_z_, d_att_)
        side.head_dot_backward(z_, att_, grad_, None, only_att)
        return side.head_dot(z_, att_), d_z_, d_att_, only_att, side.rowwise_head_dot(z_, b_, heads)

    *ours, rowwise = run(kernels, DEVICE)
    *theirs, expected = run(reference, "cpu")
    close(ours, theirs, **({"rtol": 1e-3, "atol": 1e-3} if scalar == torch.float32 else tolerance(scalar)))
    torch.testing.assert_close(
        rowwise.cpu(), expected, **({"rtol": 5e-2, "atol": 5e-2} if dtype != scalar else tolerance(dtype))
    )
