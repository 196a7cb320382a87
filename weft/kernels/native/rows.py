"""Sums and maxima over in-edges, and rows moved by index."""

import torch
from torch import Tensor

from weft.kernels import _native, memory, reference
from weft.kernels.arguments import Cut
from weft.kernels.native.pointers import code, pointer, threads


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    row_scale: Tensor | None = None,
    col_scale: Tensor | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    num_rows, width = indptr.numel() - 1, x.shape[1]
    if out is None:
        out = memory.empty((num_rows, width), x.dtype)
    _native.spmm(
        pointer(indptr), pointer(indices), num_rows, indices.numel(), pointer(x), code(x), width, pointer(weight),
        pointer(row_scale), pointer(col_scale), pointer(out), code(out), accumulate, threads(),
    )  # fmt: skip
    return out


def max_absorb(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    count: Tensor,
    cut: Cut | None = None,
) -> None:
    _native.max_absorb(
        pointer(indptr), pointer(indices), out.shape[0], indices.numel(), pointer(x), code(x), x.shape[1],
        pointer(weight), pointer(out), pointer(count), threads(),
    )  # fmt: skip


def max_finish(out: Tensor, count: Tensor) -> None:
    out.masked_fill_(count == 0, 0.0)


def max_backward(
    indptr_t: Tensor,
    indices_t: Tensor,
    x: Tensor,
    weight_t: Tensor | None,
    out: Tensor,
    grad_share: Tensor,
    dx: Tensor,
    cut_t: Cut | None = None,
) -> None:
    _native.max_backward(
        pointer(indptr_t), pointer(indices_t), x.shape[0], indices_t.numel(), pointer(x), code(x), x.shape[1],
        pointer(weight_t), pointer(out), pointer(grad_share), pointer(dx), threads(),
    )  # fmt: skip


def gather(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = memory.empty((index.numel(), *x.shape[1:]), x.dtype)
    row_bytes = out[:1].numel() * out.element_size() if out.numel() else 0
    wide = index.dtype == torch.int64
    _native.gather(pointer(x), pointer(index), wide, index.numel(), row_bytes, pointer(out), threads())
    return out


def scatter_add(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    if out.dtype == torch.bfloat16:  # the C++ kernel sums into float32 and float64 only
        return reference.scatter_add(out, index, rows)
    _native.scatter_add(
        pointer(out), out.shape[0], out.shape[1], pointer(index), index.dtype == torch.int64, index.numel(),
        pointer(rows), code(rows), threads(),
    )  # fmt: skip
    return out
