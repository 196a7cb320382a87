"""Sums and maxima over in-edges, and rows moved by index."""

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.arguments import Cut, accumulator_dtype
from weft.kernels.backends import kernel
from weft.kernels.checks import (
    check_csr,
    check_index,
    check_rows,
    check_shape,
    check_state,
    require,
)


def spmm(
    indptr: Tensor,  # int64 [N + 1]
    indices: Tensor,  # int32 [E]
    x: Tensor,  # [M, D]
    weight: Tensor | None = None,  # [E]
    row_scale: Tensor | None = None,  # [N]
    col_scale: Tensor | None = None,  # [M]
    out: Tensor | None = None,  # [N, D]
    accumulate: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    """out[i] (+)= row_scale[i] * sum over in-edges k of weight[k] * col_scale[j] * x[j], j = indices[k].

    bf16 rows are summed in float32 and `out` may then be float32. Weights and scales are float32 (float64 for
    float64 rows). With accumulate, rows without edges are not touched. `cut`, here and below, is what `cut_rows` says.
    """
    check_rows("x", x)
    check_csr(indptr, indices, x.shape[0])
    num_rows, width = indptr.numel() - 1, x.shape[1]
    scalar = accumulator_dtype(x.dtype)
    if weight is not None:
        check_shape("weight", weight, (indices.numel(),), scalar)
        weight = weight.contiguous()
    if row_scale is not None:
        check_shape("row_scale", row_scale, (num_rows,), scalar)
        row_scale = row_scale.contiguous()
    if col_scale is not None:
        check_shape("col_scale", col_scale, (x.shape[0],), scalar)
        col_scale = col_scale.contiguous()
    require(out is not None or not accumulate, "accumulate needs `out`, the sums so far")
    if out is not None:
        check_state("out", out, (num_rows, width), scalar if out.dtype == scalar else x.dtype)
    return kernel(reference.spmm, x)(
        indptr, indices, x.contiguous(), weight, row_scale, col_scale, out, accumulate, cut
    )


def max_absorb(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,  # [M, D]
    weight: Tensor | None,  # [E]
    out: Tensor,  # [N, D], -inf at the start; float32 for bf16 rows
    count: Tensor,  # int32 [N, D], 0 at the start
    cut: Cut | None = None,
) -> None:
    """Fold a block of in-edges into a running maximum and the number of edges that attain it."""
    check_rows("x", x)
    check_csr(indptr, indices, x.shape[0])
    shape = (indptr.numel() - 1, x.shape[1])
    scalar = accumulator_dtype(x.dtype)
    check_state("out", out, shape, scalar)
    check_state("count", count, shape, torch.int32)
    if weight is not None:
        check_shape("weight", weight, (indices.numel(),), scalar)
        weight = weight.contiguous()
    kernel(reference.max_absorb, x)(indptr, indices, x.contiguous(), weight, out, count, cut)


def max_finish(out: Tensor, count: Tensor) -> None:
    """Rows without in-edges become 0."""
    check_state("count", count, tuple(out.shape), torch.int32)
    check_state("out", out, tuple(count.shape), out.dtype)
    kernel(reference.max_finish, out)(out, count)


def max_backward(
    indptr_t: Tensor,
    indices_t: Tensor,
    x: Tensor,  # [M, D]
    weight_t: Tensor | None,  # [E], transposed order
    out: Tensor,  # [N, D]
    grad_share: Tensor,  # [N, D] = grad / count: tied edges share evenly, wherever they live
    dx: Tensor,  # [M, D], added into; float32 for bf16 rows
    cut_t: Cut | None = None,
) -> None:
    """dx[j] += weight * grad_share[i] for every edge j -> i that attains the maximum."""
    check_rows("x", x)
    check_rows("out", out)
    scalar = accumulator_dtype(x.dtype)
    check_csr(indptr_t, indices_t, out.shape[0])
    require(
        indptr_t.numel() - 1 == x.shape[0],
        f"indptr_t has {indptr_t.numel() - 1} rows, but x has {x.shape[0]}",
    )
    check_shape("out", out, (out.shape[0], x.shape[1]), scalar)
    check_shape("grad_share", grad_share, tuple(out.shape), scalar)
    check_state("dx", dx, tuple(x.shape), scalar)
    if weight_t is not None:
        check_shape("weight_t", weight_t, (indices_t.numel(),), scalar)
        weight_t = weight_t.contiguous()
    run = kernel(reference.max_backward, x)
    run(indptr_t, indices_t, x.contiguous(), weight_t, out.contiguous(), grad_share.contiguous(), dx, cut_t)


def gather(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Rows x[index], of any dtype."""
    require(x.dim() >= 1, "x must have rows to gather")
    check_index("index", index, x.shape[0])
    shape = (index.numel(), *x.shape[1:])
    if out is not None:
        check_state("out", out, shape, x.dtype)
    return kernel(reference.gather, x)(x.contiguous(), index.contiguous(), out)


def scatter_add(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """out[index[k]] += rows[k], in the order of k for any number of threads; bf16 may go into float32."""
    check_rows("out", out)
    check_rows("rows", rows)
    check_index("index", index, out.shape[0])
    check_shape("rows", rows, (index.numel(), out.shape[1]), rows.dtype)
    require(
        rows.dtype == out.dtype or (rows.dtype, out.dtype) == (torch.bfloat16, torch.float32),
        f"rows are {rows.dtype}, which does not add into {out.dtype}",
    )
    check_state("out", out, tuple(out.shape), out.dtype)
    return kernel(reference.scatter_add, out)(out, index.contiguous(), rows.contiguous())
