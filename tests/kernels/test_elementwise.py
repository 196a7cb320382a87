"""Dropout by hash, fused bias-relu-dropout, per-head dots."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.graphs import randn, tolerance
from weft import kernels
from weft.kernels import reference
from weft.kernels.reference.masks import keep_rows

pytestmark = pytest.mark.usefixtures("backend")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
MASK64 = 2**64 - 1


def keeps_by_hand(key: int, row_id: int, column: int, p: float) -> bool:
    """The hash in Python integers, written from its definition."""
    z = (key + row_id * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    z ^= z >> 31
    v = ((z & 0xFFFFFFFF) + column * 0x9E3779B9) & 0xFFFFFFFF
    v ^= v >> 16
    v = v * 0x85EBCA6B & 0xFFFFFFFF
    v ^= v >> 13
    v = v * 0xC2B2AE35 & 0xFFFFFFFF
    v ^= v >> 16
    return (v ^ (z >> 32)) >= int(p * 2**32)


@pytest.mark.parametrize("key", [0, 12345678901234567890, -7])
def test_the_mask_is_the_defined_hash(key):
    ids = torch.tensor([0, 1, 77, 2**40 + 3])
    ones = torch.ones(4, 37)
    dropped = kernels.dropout_rows(ones, ids, 0.3, key)
    expected = [[keeps_by_hand(key & MASK64, i, c, 0.3) for c in range(37)] for i in ids.tolist()]
    assert (dropped > 0).tolist() == expected
    assert torch.equal(keep_rows(ids, 37, 0.3, key), torch.tensor(expected))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 20),
    st.integers(1, 300),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
)
def test_fused_passes(rows, width, dtype, p, with_bias, key):
    scalar = torch.float32 if dtype == torch.bfloat16 else dtype
    x, ids = randn(rows, width, dtype=dtype), torch.arange(rows) * 1_000_003
    bias = randn(width, dtype=scalar, seed=1) if with_bias else None
    close = tolerance(dtype)
    dropped = reference.dropout_rows(x, ids, p, key)
    torch.testing.assert_close(kernels.dropout_rows(x, ids, p, key), dropped, **close)
    ours, theirs = x.clone(), x.clone()
    assert kernels.bias_relu_dropout_(ours, bias, ids, p, key) is ours
    torch.testing.assert_close(ours, reference.bias_relu_dropout_(theirs, bias, ids, p, key), **close)
    grad = randn(rows, width, dtype=dtype, seed=2)
    backward = kernels.relu_dropout_backward(grad, ours, p)
    torch.testing.assert_close(backward, reference.relu_dropout_backward(grad, ours, p), **close)
    assert torch.equal(kernels.relu_dropout_backward(grad, ours, p, into=grad), backward)


def test_dropout_keeps_its_share_and_its_mean():
    kept = kernels.dropout_rows(torch.ones(2000, 128), torch.arange(2000), 0.4, 5)
    share = (kept > 0).double().mean().item()
    assert abs(share - 0.6) < 4 * (0.24 / kept.numel()) ** 0.5
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    assert abs((kept > 0).double().mean(0) - 0.6).max() < 0.06  # no column stands out


def test_dropout_does_not_depend_on_where_a_row_lies():
    x, ids = randn(50, 33), torch.randperm(50, generator=torch.Generator().manual_seed(0))
    whole = kernels.dropout_rows(x, ids, 0.5, 9)
    assert torch.equal(kernels.dropout_rows(x[20:30], ids[20:30], 0.5, 9), whole[20:30])


def test_nan_is_not_hidden_by_relu():
    x = torch.tensor([[float("nan"), -1.0, 2.0] * 5])
    assert torch.isnan(kernels.bias_relu_dropout_(x, None, None, 0.0, 0)[0, ::3]).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 700), st.sampled_from([1, 3, 4, 8]), st.sampled_from([1, 7, 16, 33, 64]), st.sampled_from(DTYPES))
def test_head_dot(rows, heads, width, dtype):
    scalar = torch.float32 if dtype == torch.bfloat16 else dtype
    z, att = randn(rows, heads * width, dtype=dtype), randn(heads, width, dtype=scalar, seed=1)
    close = {"rtol": 1e-3, "atol": 1e-3} if scalar == torch.float32 else tolerance(scalar)
    torch.testing.assert_close(kernels.head_dot(z, att), reference.head_dot(z, att), **close)
    grad = randn(rows, heads, dtype=scalar, seed=2)
    ours = (randn(*z.shape, dtype=scalar, seed=3), randn(heads, width, dtype=scalar, seed=4))
    theirs = tuple(t.clone() for t in ours)
    kernels.head_dot_backward(z, att, grad, *ours)
    reference.head_dot_backward(z, att, grad, *theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **close)


def test_threads_do_not_change_a_bit(with_threads):
    z, att, grad = randn(9000, 32), randn(4, 8, seed=1), randn(9000, 4, seed=2)
    results = []
    for threads in (1, 2):
        with with_threads(threads):
            d_att = torch.zeros(4, 8)
            kernels.head_dot_backward(z, att, grad, None, d_att)
            results.append((d_att, kernels.dropout_rows(z, torch.arange(9000), 0.5, 1)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_mistakes_are_named():
    x, ids = randn(4, 8), torch.arange(4)
    with pytest.raises(ValueError, match=r"dropout probability must be in \[0, 1\), but is 1.0"):
        kernels.dropout_rows(x, ids, 1.0, 0)
    with pytest.raises(ValueError, match=r"row_ids must have shape \(4,\)"):
        kernels.dropout_rows(x, ids[:3], 0.5, 0)
    with pytest.raises(ValueError, match=r"bias must have shape \(8,\)"):
        kernels.bias_relu_dropout_(x, torch.ones(7), ids, 0.5, 0)
    with pytest.raises(ValueError, match="needs row_ids"):
        kernels.bias_relu_dropout_(x, None, None, 0.5, 0)
    with pytest.raises(ValueError, match=r"8 columns, but att has \(3, 2\)"):
        kernels.head_dot(x, torch.ones(3, 2))
