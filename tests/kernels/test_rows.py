"""Sums, maxima, gather and scatter-add against the plain torch reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.graphs import Block, blocks, randn, random_block, tolerance
from weft import kernels
from weft.kernels import reference
from weft.kernels.reference.csr import rows_of

pytestmark = pytest.mark.usefixtures("backend")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 96, 97, 105, 128, 129, 200, 256, 300, 801]


def scalar_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


@settings(max_examples=150, deadline=None)
@given(
    blocks(),
    st.sampled_from(WIDTHS),
    st.sampled_from(DTYPES),
    *[st.booleans() for _ in range(5)],
)
def test_spmm(block: Block, width, dtype, weighted, row_scaled, col_scaled, given_out, accumulate):
    scalar = scalar_of(dtype)
    x = randn(block.num_cols, width, dtype=dtype)
    weight = randn(block.num_edges, dtype=scalar, seed=1) if weighted else None
    row_scale = randn(block.num_rows, dtype=scalar, seed=2) if row_scaled else None
    col_scale = randn(block.num_cols, dtype=scalar, seed=3) if col_scaled else None
    start = randn(block.num_rows, width, dtype=scalar, seed=4) if given_out or accumulate else None
    ours, theirs = (None if start is None else start.clone() for _ in range(2))
    args = (block.indptr, block.indices, x, weight, row_scale, col_scale)
    result = kernels.spmm(*args, ours, accumulate)
    expected = reference.spmm(*args, theirs, accumulate)
    assert result.dtype == expected.dtype and (ours is None or result is ours)
    torch.testing.assert_close(result, expected, **tolerance(result.dtype))
    if accumulate:
        assert start is not None
        empty = block.indptr[1:] == block.indptr[:-1]
        assert torch.equal(result[empty], start[empty])


def test_spmm_adds_into_bf16():
    block = random_block(20, 20, 100)
    x, out = randn(20, 37, dtype=torch.bfloat16), randn(20, 37, dtype=torch.bfloat16, seed=1)
    expected = (reference.spmm(block.indptr, block.indices, x.float()) + out.float()).bfloat16()
    torch.testing.assert_close(
        kernels.spmm(block.indptr, block.indices, x, out=out, accumulate=True), expected, rtol=1e-2, atol=1e-2
    )


def test_spmm_and_its_transpose_are_adjoint():
    block = random_block(60, 50, 700)
    weight = randn(700, dtype=torch.float64)
    x, y = randn(50, 33, dtype=torch.float64, seed=1), randn(60, 33, dtype=torch.float64, seed=2)
    forward = (kernels.spmm(block.indptr, block.indices, x, weight) * y).sum()
    weight_t = kernels.gather(weight, block.order_t)
    backward = (kernels.spmm(block.indptr_t, block.indices_t, y, weight_t) * x).sum()
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [5, 128])
def test_threads_do_not_change_a_bit(width, with_threads):
    block = random_block(5_000, 5_000, 60_000)
    x, weight = randn(5_000, width), randn(60_000, seed=1)
    index = torch.randint(1000, (5_000,), generator=torch.Generator().manual_seed(0))
    results = []
    for threads in (1, 2):
        with with_threads(threads):
            best, count = torch.full((5_000, width), -torch.inf), torch.zeros(5_000, width, dtype=torch.int32)
            kernels.max_absorb(block.indptr, block.indices, x, weight, best, count)
            dx = torch.zeros_like(x)
            weight_t = kernels.gather(weight, block.order_t)
            kernels.max_backward(block.indptr_t, block.indices_t, x, weight_t, best, x, dx)
            results.append(
                (
                    kernels.spmm(block.indptr, block.indices, x, weight),
                    best,
                    count,
                    dx,
                    kernels.scatter_add(torch.zeros(1000, width), index, x),
                )
            )
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from(WIDTHS), st.sampled_from(DTYPES), st.booleans(), st.integers(1, 3))
def test_max_with_ties(block: Block, width, dtype, weighted, levels):
    scalar = scalar_of(dtype)
    x = (randn(block.num_cols, width) * levels).round().to(dtype)  # few values: many ties
    weight = (randn(block.num_edges, dtype=scalar, seed=1) * 2).round() / 2 if weighted else None
    shape = (block.num_rows, width)
    states = []
    for implementation in (kernels, reference):
        out, count = torch.full(shape, -torch.inf, dtype=scalar), torch.zeros(shape, dtype=torch.int32)
        implementation.max_absorb(block.indptr, block.indices, x, weight, out, count)
        implementation.max_finish(out, count)
        share = randn(*shape, dtype=scalar, seed=2) / count.clamp(min=1)
        dx = randn(block.num_cols, width, dtype=scalar, seed=3)
        weight_t = None if weight is None else weight[block.order_t]
        implementation.max_backward(block.indptr_t, block.indices_t, x, weight_t, out, share, dx)
        states.append((out, count, dx))
    (out, count, dx), (out_r, count_r, dx_r) = states
    assert torch.equal(out, out_r) and torch.equal(count, count_r)
    torch.testing.assert_close(dx, dx_r, **tolerance(scalar))
    empty = block.indptr[1:] == block.indptr[:-1]
    assert (out[empty] == 0).all() and torch.isfinite(out).all()


def test_max_of_blocks_in_any_order_is_the_max_of_all():
    x = randn(30, 19).round()
    whole = random_block(20, 30, 300)
    rows = rows_of(whole.indptr)
    results = []
    for parts in ([range(0, 30)], [range(0, 9), range(9, 30)], [range(20, 30), range(0, 20)]):
        out, count = torch.full((20, 19), -torch.inf), torch.zeros(20, 19, dtype=torch.int32)
        for part in parts:
            inside = (whole.indices >= part.start) & (whole.indices < part.stop)
            block = kernels.build_csr(whole.indices[inside].long() - part.start, rows[inside], len(part), 20)
            kernels.max_absorb(block[0], block[1], x[part.start : part.stop], None, out, count)
        kernels.max_finish(out, count)
        results.append((out, count))
    for out, count in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(count, results[0][1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 30), st.sampled_from([0, 1, 3, 16, 129]), st.booleans(), st.integers(0, 9))
def test_gather_and_scatter_add(count, num_rows, width, wide, seed):
    index = torch.randint(num_rows, (count,), generator=torch.Generator().manual_seed(seed))
    index = index if wide else index.int()
    for dtype in (*DTYPES, torch.int64, torch.uint8):
        x = (randn(num_rows, width) * 5).to(dtype)
        assert torch.equal(kernels.gather(x, index), x[index.long()])
    for dtype, into in ((d, d) for d in DTYPES):
        rows, out = randn(count, width, dtype=dtype), randn(num_rows, width, dtype=into, seed=1)
        expected = out.double().index_add(0, index.long(), rows.double()).to(into)
        torch.testing.assert_close(kernels.scatter_add(out, index, rows), expected, **tolerance(into))
    mixed = kernels.scatter_add(torch.zeros(num_rows, width), index, randn(count, width, dtype=torch.bfloat16))
    assert mixed.dtype == torch.float32


def test_gather_of_vectors_and_into_a_given_buffer():
    x, index = torch.arange(10.0), torch.tensor([3, 3, 9])
    assert kernels.gather(x, index).tolist() == [3, 3, 9]
    buffer = torch.zeros(5, 4)
    rows = randn(10, 4)
    kernels.gather(rows, index, out=buffer[1:4])
    assert torch.equal(buffer[1:4], rows[index]) and not buffer[[0, 4]].any()


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, block):
        ctx.block, ctx.weight = block, weight
        return kernels.spmm(block.indptr, block.indices, x, weight)

    @staticmethod
    def backward(ctx, grad):
        block = ctx.block
        weight_t = kernels.gather(ctx.weight, block.order_t)
        return kernels.spmm(block.indptr_t, block.indices_t, grad.contiguous(), weight_t), None, None


class Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block):
        shape = (block.num_rows, x.shape[1])
        out, count = torch.full(shape, -torch.inf, dtype=x.dtype), torch.zeros(shape, dtype=torch.int32)
        kernels.max_absorb(block.indptr, block.indices, x, None, out, count)
        kernels.max_finish(out, count)
        ctx.block = block
        ctx.save_for_backward(x, out, count)
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        x, out, count = ctx.saved_tensors
        dx = torch.zeros_like(x)
        kernels.max_backward(ctx.block.indptr_t, ctx.block.indices_t, x, None, out, grad / count.clamp(min=1), dx)
        return dx, None


def test_gradients():
    block = random_block(6, 5, 20)
    x = randn(5, 9, dtype=torch.float64).requires_grad_()
    weight = randn(20, dtype=torch.float64, seed=1)
    torch.autograd.gradcheck(lambda v: Sum.apply(v, weight, block), x)
    torch.autograd.gradcheck(lambda v: Max.apply(v, block), x)


def test_wrong_shapes_are_refused_with_a_sentence():
    block = random_block(4, 3, 10)
    x = randn(3, 8)
    csr = (block.indptr, block.indices)
    with pytest.raises(ValueError, match=r"weight must have shape \(10,\), but has \(9,\)"):
        kernels.spmm(*csr, x, weight=torch.ones(9))
    with pytest.raises(ValueError, match=r"weight must be torch.float32, but is torch.float64"):
        kernels.spmm(*csr, x, weight=torch.ones(10, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"row_scale must have shape \(4,\)"):
        kernels.spmm(*csr, x, row_scale=torch.ones(3))
    with pytest.raises(ValueError, match=r"out must have shape \(4, 8\), but has \(4, 7\)"):
        kernels.spmm(*csr, x, out=torch.empty(4, 7))
    with pytest.raises(ValueError, match="contiguous"):
        kernels.spmm(*csr, x, out=torch.empty(8, 4).t())
    with pytest.raises(ValueError, match="accumulate needs"):
        kernels.spmm(*csr, x, accumulate=True)
    with pytest.raises(ValueError, match="x must be float32, float64 or bfloat16"):
        kernels.spmm(*csr, x.half())
    with pytest.raises(ValueError, match="indices holds"):
        kernels.spmm(*csr, x[:1])
    with pytest.raises(ValueError, match="index holds 3, but there are only 3"):
        kernels.gather(x, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="index holds -1"):
        kernels.scatter_add(x, torch.tensor([-1]), x[:1])
    with pytest.raises(ValueError, match="does not add into"):
        kernels.scatter_add(x, torch.tensor([0]), x[:1].double())
    with pytest.raises(ValueError, match=r"count must be torch.int32"):
        kernels.max_absorb(*csr, x, None, torch.zeros(4, 8), torch.zeros(4, 8, dtype=torch.int64))
