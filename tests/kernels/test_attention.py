"""Fused attention: forward and backward against the reference and a dense softmax, block by block, gradcheck."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.graphs import Block, block_of, blocks, randn, random_block
from weft import kernels
from weft.kernels import reference
from weft.kernels.reference.csr import rows_of
from weft.kernels.reference.masks import keep_edges

pytestmark = pytest.mark.usefixtures("backend")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(1, 1), (1, 40), (2, 5), (3, 17), (4, 8), (4, 16), (4, 33), (8, 8), (8, 3), (5, 100), (1, 150)]


def close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-4}


def scalar_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def fresh(rows: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.full((rows, heads), -torch.inf, dtype=dtype)
    return m, torch.zeros(rows, heads, dtype=dtype), torch.zeros(rows, heads * width, dtype=dtype)


def dropout_of(block: Block, p: float):
    if p == 0:
        return None
    return p, 99, torch.arange(block.num_rows) * 7 + 1, torch.arange(block.num_cols) * 13 + 5


def run_gat(implementation, block: Block, heads: int, width: int, dtype, p: float, scale: float = 1.0):
    scalar = scalar_of(dtype)
    dst, src = (scale * randn(n, heads, dtype=scalar, seed=s) for n, s in ((block.num_rows, 1), (block.num_cols, 2)))
    values = randn(block.num_cols, heads * width, dtype=dtype, seed=3)
    m, l, o = fresh(block.num_rows, heads, width, scalar)  # noqa: E741
    drop = dropout_of(block, p)
    implementation.gat_absorb(block.indptr, block.indices, dst, src, values, 0.2, m, l, o, drop)
    implementation.attend_finish(l, o)
    grad = randn(*o.shape, dtype=scalar, seed=4)
    delta = (grad * o).view(block.num_rows, heads, width).sum(-1)
    d = [randn(*t.shape, dtype=scalar, seed=5) for t in (dst, src, values)]
    implementation.gat_backward(
        block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t,
        dst, src, values, 0.2, m, l, delta, grad, *d, drop,
    )  # fmt: skip
    return m, l, o, *d


def run_gatv2(implementation, block: Block, heads: int, width: int, dtype, p: float, scale: float = 1.0):
    scalar = scalar_of(dtype)
    query = scale * randn(block.num_rows, heads * width, dtype=dtype, seed=1)
    key = randn(block.num_cols, heads * width, dtype=dtype, seed=2)
    att = randn(heads, width, dtype=scalar, seed=3) / width**0.5
    m, l, o = fresh(block.num_rows, heads, width, scalar)  # noqa: E741
    drop = dropout_of(block, p)
    implementation.gatv2_absorb(block.indptr, block.indices, query, key, att, 0.2, m, l, o, drop)
    implementation.attend_finish(l, o)
    grad = randn(*o.shape, dtype=scalar, seed=4)
    delta = (grad * o).view(block.num_rows, heads, width).sum(-1)
    d = [randn(*t.shape, dtype=scalar, seed=5) for t in (query, key, att)]
    implementation.gatv2_backward(
        block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t,
        query, key, att, 0.2, m, l, delta, grad, *d, drop,
    )  # fmt: skip
    return m, l, o, *d


def run_dot(implementation, block: Block, heads: int, width: int, dtype, p: float, scale: float = 1.0):
    """Values are of another width than queries and keys; logits are `scale` times those of the other kinds."""
    scalar, value_width = scalar_of(dtype), width // 2 + 3
    query, key = (
        scale**0.5 * randn(n, heads * width, dtype=dtype, seed=s) for n, s in ((block.num_rows, 1), (block.num_cols, 2))
    )
    values = randn(block.num_cols, heads * value_width, dtype=dtype, seed=3)
    m, l, o = fresh(block.num_rows, heads, value_width, scalar)  # noqa: E741
    drop = dropout_of(block, p)
    implementation.dot_absorb(block.indptr, block.indices, query, key, values, width**-0.5, m, l, o, drop)
    implementation.attend_finish(l, o)
    grad = randn(*o.shape, dtype=scalar, seed=4)
    delta = (grad * o).view(block.num_rows, heads, value_width).sum(-1)
    d = [randn(*t.shape, dtype=scalar, seed=5) for t in (query, key, values)]
    implementation.dot_backward(
        block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t,
        query, key, values, width**-0.5, m, l, delta, grad, *d, drop,
    )  # fmt: skip
    return m, l, o, *d


RUNS = [run_gat, run_gatv2, run_dot]


@pytest.mark.usefixtures("beside_the_reference")
@settings(max_examples=180, deadline=None)
@given(
    blocks(),
    st.sampled_from(SHAPES),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(RUNS),
)
def test_against_the_reference(block, shape, dtype, p, run):
    ours, theirs = (run(side, block, *shape, dtype, p) for side in (kernels, reference))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **close(scalar_of(dtype)))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_a_thousand_stay_finite_and_right(run, dtype):
    block = random_block(9, 9, 120)
    ours, theirs = (run(side, block, 4, 16, dtype, 0.0, scale=1000.0) for side in (kernels, reference))
    assert ours[0][torch.isfinite(ours[0])].abs().max() > 200
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        assert torch.isfinite(a).all()
        # a float32 logit of 1000 is known to 6e-5, and the order of its sum decides the last digits
        torch.testing.assert_close(
            a, b, **({"rtol": 1e-8, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2})
        )


def test_gat_is_a_dense_softmax():
    block = random_block(12, 10, 60, seed=8)
    heads, width = 2, 5
    dst, src = randn(12, heads, dtype=torch.float64, seed=1), randn(10, heads, dtype=torch.float64, seed=2)
    values = randn(10, heads * width, dtype=torch.float64, seed=3)
    m, l, o = fresh(12, heads, width, torch.float64)  # noqa: E741
    kernels.gat_absorb(block.indptr, block.indices, dst, src, values, 0.2, m, l, o)
    kernels.attend_finish(l, o)
    for i in range(12):
        cols = block.indices[block.indptr[i] : block.indptr[i + 1]].long()
        if not len(cols):
            assert (o[i] == 0).all()
            continue
        share = torch.nn.functional.leaky_relu(dst[i] + src[cols], 0.2).softmax(0)
        expected = (share[:, :, None] * values[cols].view(-1, heads, width)).sum(0)
        torch.testing.assert_close(o[i], expected.flatten(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_dot_is_a_dense_softmax(factor):
    """Output and all three gradients against autograd, row by row; rows without in-edges and multi-edges are there."""
    block = random_block(12, 10, 30, seed=8)
    heads, width, value_width, scale = 2, 5, 4, 0.3
    query = (factor * randn(12, heads * width, dtype=torch.float64, seed=1)).requires_grad_()
    key = randn(10, heads * width, dtype=torch.float64, seed=2).requires_grad_()
    values = randn(10, heads * value_width, dtype=torch.float64, seed=3).requires_grad_()
    degrees = block.indptr[1:] - block.indptr[:-1]
    pairs = torch.stack([rows_of(block.indptr), block.indices.long()])
    assert (degrees == 0).any() and pairs.unique(dim=1).shape[1] < block.num_edges
    dense = []
    for i in range(12):
        cols = block.indices[block.indptr[i] : block.indptr[i + 1]].long()
        logits = scale * (query[i].view(heads, width) * key[cols].view(-1, heads, width)).sum(-1)
        dense.append((logits.softmax(0)[:, :, None] * values[cols].view(-1, heads, value_width)).sum(0).flatten())
    expected, grad = torch.stack(dense), randn(12, heads * value_width, dtype=torch.float64, seed=4)
    wanted = torch.autograd.grad(expected, (query, key, values), grad)

    inputs = tuple(t.detach() for t in (query, key, values))
    m, l, o = fresh(12, heads, value_width, torch.float64)  # noqa: E741
    kernels.dot_absorb(block.indptr, block.indices, *inputs, scale, m, l, o)
    kernels.attend_finish(l, o)
    torch.testing.assert_close(o, expected.detach(), rtol=1e-10, atol=1e-11)
    assert (o[degrees == 0] == 0).all()
    delta = kernels.rowwise_head_dot(grad, o, heads)
    found = [torch.zeros_like(t) for t in inputs]
    kernels.dot_backward(
        block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t,
        *inputs, scale, m, l, delta, grad, *found,
    )  # fmt: skip
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_coefficients_sum_to_one():
    block = random_block(30, 30, 60)
    m, l, o = fresh(30, 4, 8, torch.float32)  # noqa: E741
    ones = torch.ones(30, 32)
    kernels.gat_absorb(block.indptr, block.indices, randn(30, 4), randn(30, 4, seed=1), ones, 0.2, m, l, o)
    kernels.attend_finish(l, o)
    has_edge = block.indptr[1:] > block.indptr[:-1]
    torch.testing.assert_close(o[has_edge], torch.ones(int(has_edge.sum()), 32), rtol=1e-5, atol=1e-5)
    assert (o[~has_edge] == 0).all() and not has_edge.all()


@pytest.mark.parametrize("version", ["gat", "gatv2", "dot"])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_blocks_in_any_order_equal_one_shot(version, p):
    num, heads, width = 40, 4, 9
    whole = random_block(num, num, 600, seed=2)
    rows = rows_of(whole.indptr)
    ids = torch.arange(num) * 3 + 1
    terms = [randn(num, heads, dtype=torch.float64, seed=s) for s in (1, 2)]
    query, key, values = (randn(num, heads * width, dtype=torch.float64, seed=s) for s in (3, 4, 7))
    att = randn(heads, width, dtype=torch.float64, seed=5)
    grad = randn(num, heads * width, dtype=torch.float64, seed=6)

    def run(cuts: list[tuple[int, int]]) -> list[Tensor]:
        m, l, o = fresh(num, heads, width, torch.float64)  # noqa: E741
        parts = []
        for low, high in cuts:
            inside = (whole.indices >= low) & (whole.indices < high)
            block = block_of(whole.indices[inside].long() - low, rows[inside], high - low, num)
            drop = (p, 7, ids, ids[low:high]) if p else None
            parts.append((block, low, high, drop))
            if version == "gat":
                kernels.gat_absorb(
                    block.indptr, block.indices, terms[0], terms[1][low:high], key[low:high], 0.2, m, l, o, drop
                )
            elif version == "gatv2":
                kernels.gatv2_absorb(block.indptr, block.indices, query, key[low:high], att, 0.2, m, l, o, drop)
            else:
                kernels.dot_absorb(
                    block.indptr, block.indices, query, key[low:high], values[low:high], 0.2, m, l, o, drop
                )
        kernels.attend_finish(l, o)
        delta = (grad * o).view(num, heads, width).sum(-1)
        d_terms, d_query, d_key = [torch.zeros_like(t) for t in terms], torch.zeros_like(query), torch.zeros_like(key)
        d_att, d_values = torch.zeros_like(att), torch.zeros_like(values)
        for block, low, high, drop in parts:
            csr = (block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t)
            if version == "gat":
                kernels.gat_backward(
                    *csr, terms[0], terms[1][low:high], key[low:high], 0.2, m, l, delta, grad,
                    d_terms[0], d_terms[1][low:high], d_key[low:high], drop,
                )  # fmt: skip
            elif version == "gatv2":
                kernels.gatv2_backward(
                    *csr, query, key[low:high], att, 0.2, m, l, delta, grad, d_query, d_key[low:high], d_att, drop
                )
            else:
                kernels.dot_backward(
                    *csr, query, key[low:high], values[low:high], 0.2, m, l, delta, grad,
                    d_query, d_key[low:high], d_values[low:high], drop,
                )  # fmt: skip
        return [m, l, o, *d_terms, d_query, d_key, d_att, d_values]

    whole_run = run([(0, num)])
    for cuts in ([(0, 11), (11, 12), (12, 40)], [(30, 40), (5, 30), (0, 5)]):
        for a, b in zip(run(cuts), whole_run, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


KERNELS = {
    "gat": (kernels.gat_absorb, kernels.gat_backward),
    "gatv2": (kernels.gatv2_absorb, kernels.gatv2_backward),
    "dot": (kernels.dot_absorb, kernels.dot_backward),
}


class Attend(torch.autograd.Function):
    """gat with (dst, src, values), gatv2 with (query, key, att), dot with (query, key, values)."""

    @staticmethod
    def forward(ctx, version, block, drop, heads, a, b, c):
        width = (a if version == "gatv2" else c).shape[1] // heads
        m, l, o = fresh(block.num_rows, heads, width, a.dtype)  # noqa: E741
        KERNELS[version][0](block.indptr, block.indices, a, b, c, 0.2, m, l, o, drop)
        kernels.attend_finish(l, o)
        ctx.version, ctx.block, ctx.drop = version, block, drop
        ctx.save_for_backward(a, b, c, m, l, o)
        return o.clone()

    @staticmethod
    def backward(ctx, grad):
        a, b, c, m, l, o = ctx.saved_tensors  # noqa: E741
        block = ctx.block
        delta = (grad * o).view(*m.shape, o.shape[1] // m.shape[1]).sum(-1)
        d = [torch.zeros_like(t) for t in (a, b, c)]
        csr = (block.indptr, block.indices, block.indptr_t, block.indices_t, block.order_t)
        KERNELS[ctx.version][1](*csr, a, b, c, 0.2, m, l, delta, grad.contiguous(), *d, ctx.drop)
        return None, None, None, None, *d


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("version", KERNELS)
def test_gradcheck(version, p):
    block = random_block(5, 6, 22, seed=1)
    heads, width = 3, 3
    shapes = {
        "gat": [(5, heads), (6, heads), (6, heads * width)],
        "gatv2": [(5, heads * width), (6, heads * width), (heads, width)],
        "dot": [(5, heads * width), (6, heads * width), (6, heads * 2)],
    }[version]
    inputs = [randn(*s, dtype=torch.float64, seed=i).requires_grad_() for i, s in enumerate(shapes)]
    drop = dropout_of(block, p)
    assert torch.autograd.gradcheck(lambda *args: Attend.apply(version, block, drop, heads, *args), inputs)


@pytest.mark.parametrize("run", RUNS)
def test_threads_do_not_change_a_bit(run, with_threads):
    block = random_block(3_000, 3_000, 40_000)
    results = []
    for threads in (1, 2):
        with with_threads(threads):
            results.append(run(kernels, block, 4, 8, torch.float32, 0.2))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("version", ["gat", "dot"])
def test_dropout_zeroes_the_named_coefficients(version):
    block = random_block(8, 8, 50)
    drop = dropout_of(block, 0.5)
    assert drop is not None
    keep = keep_edges(block.indptr, block.indices, 2, drop)
    assert 20 < keep.sum() < 80
    eye = torch.eye(8).repeat(1, 2)  # o shows every source's share
    m, l, o = fresh(8, 2, 8, torch.float32)  # noqa: E741
    zero = torch.zeros(8, 2)  # all logits alike
    KERNELS[version][0](block.indptr, block.indices, zero, zero, eye, 0.2, m, l, o, drop)
    kernels.attend_finish(l, o)
    shares = torch.zeros(8, 2, 8)
    degree = (block.indptr[1:] - block.indptr[:-1]).clamp(min=1)
    for k, (i, j) in enumerate(zip(rows_of(block.indptr).tolist(), block.indices.tolist(), strict=True)):
        shares[i, :, j] += keep[k] / 0.5 / degree[i]
    torch.testing.assert_close(o.view(8, 2, 8), shares)


def test_nan_comes_through():
    block = random_block(4, 4, 12)
    src = torch.zeros(4, 1)
    src[block.indices[0].item()] = float("nan")
    m, l, o = fresh(4, 1, 8, torch.float32)  # noqa: E741
    kernels.gat_absorb(block.indptr, block.indices, torch.zeros(4, 1), src, torch.ones(4, 8), 0.2, m, l, o)
    kernels.attend_finish(l, o)
    assert torch.isnan(o).any()


def test_mistakes_are_named():
    block = random_block(4, 3, 10)
    m, l, o = fresh(4, 2, 4, torch.float32)  # noqa: E741
    csr = (block.indptr, block.indices)
    dst, src, values = torch.zeros(4, 2), torch.zeros(3, 2), torch.zeros(3, 8)
    with pytest.raises(ValueError, match=r"dst_term must have shape \(4, 2\), but has \(3, 2\)"):
        kernels.gat_absorb(*csr, src, src, values, 0.2, m, l, o)
    with pytest.raises(ValueError, match="7 columns do not split into 2 equal heads"):
        kernels.gat_absorb(*csr, dst, src, values[:, :7].contiguous(), 0.2, m, l, o)
    with pytest.raises(ValueError, match=r"o must have shape \(4, 8\)"):
        kernels.gat_absorb(*csr, dst, src, values, 0.2, m, l, o[:, :4].contiguous())
    with pytest.raises(ValueError, match=r"src_ids must have shape \(3,\)"):
        kernels.gat_absorb(*csr, dst, src, values, 0.2, m, l, o, (0.5, 0, torch.arange(4), torch.arange(4)))
    with pytest.raises(ValueError, match="its transpose has 9"):
        other = random_block(4, 3, 9)
        kernels.gat_backward(
            *csr, other.indptr_t, other.indices_t, other.order_t, dst, src, values, 0.2, m, l, dst, o,
            dst, src, values,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"att must have shape \(2, 4\)"):
        kernels.gatv2_absorb(*csr, o.clone(), values, torch.zeros(4, 2), 0.2, m, l, o)
    with pytest.raises(ValueError, match=r"key must have shape \(3, 6\), but has \(3, 8\)"):
        kernels.dot_absorb(*csr, torch.zeros(4, 6), values, values, 0.2, m, l, o)
    with pytest.raises(ValueError, match="5 columns of query do not split into 2 equal heads"):
        kernels.dot_absorb(*csr, torch.zeros(4, 5), values, values, 0.2, m, l, o)
    with pytest.raises(ValueError, match=r"query must have shape \(4, 8\), but has \(3, 8\)"):
        kernels.dot_absorb(*csr, values, values, values, 0.2, m, l, o)
