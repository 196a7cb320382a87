"""Fused attention: softmax over in-edges and weighted sum, without an E x heads x D tensor.

A destination's state per head is (m, l, o): largest logit, sum of exp(e - m), sum of exp(e - m) z. Blocks of
in-edges are absorbed into it in any order; attend_finish divides. The backward kernels recompute coefficients
from m and l, so they too work block by block.
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import torch
from torch import Tensor

from weft.kernels import reference_attention as reference
from weft.kernels.checks import accumulator_dtype, check_csr, check_rows, check_shape, check_state, require
from weft.kernels.elementwise import check_probability
from weft.kernels.native import code, native_for, pointer, threads
from weft.kernels.reference import Dropout

_UINT64 = 0xFFFFFFFFFFFFFFFF
_NativeDropout = tuple[float, int, int, int]


def attend_finish(l: Tensor, o: Tensor) -> None:
    """o /= l, and 0 where there was no in-edge; both in place, l [N, H], o [N, H*D]."""
    check_rows("l", l)
    check_rows("o", o)
    require(
        o.shape[0] == l.shape[0] and l.shape[1] > 0 and o.shape[1] % l.shape[1] == 0,
        f"o has shape {tuple(o.shape)}, which does not fit the {tuple(l.shape)} of l",
    )
    check_state("o", o, tuple(o.shape), l.dtype)
    native = native_for(o)
    if native is None:
        reference.attend_finish(l, o)
        return
    l = l.contiguous()
    native.attend_finish(pointer(l), pointer(o), code(o), l.shape[0], l.shape[1], o.shape[1] // l.shape[1], threads())


def check_attention(
    indptr: Tensor, indices: Tensor, values: Tensor, m: Tensor, l: Tensor
) -> tuple[torch.dtype, int, int]:
    """dtype of terms and state, heads, columns a head."""
    check_rows("values", values)
    check_csr(indptr, indices, values.shape[0])
    scalar = accumulator_dtype(values.dtype)
    require(m.dim() == 2 and m.shape[1] > 0, f"m must be [rows, heads], but its shape is {tuple(m.shape)}")
    num_heads = m.shape[1]
    require(
        values.shape[1] % num_heads == 0,
        f"{values.shape[1]} columns do not split into {num_heads} equal heads",
    )
    check_state("m", m, (indptr.numel() - 1, num_heads), scalar)
    check_state("l", l, tuple(m.shape), scalar)
    return scalar, num_heads, values.shape[1] // num_heads


def check_transposed(indptr: Tensor, indices: Tensor, indptr_t: Tensor, indices_t: Tensor, order_t: Tensor) -> None:
    check_csr(indptr_t, indices_t, indptr.numel() - 1)
    require(
        indices.numel() == indices_t.numel(),
        f"the block has {indices.numel()} edges, but its transpose has {indices_t.numel()}",
    )
    check_shape("order_t", order_t, (indices.numel(),), torch.int64)
    require(order_t.is_contiguous(), "order_t must be contiguous")


def check_dropout(
    dropout: Dropout | None, num_rows: int, num_cols: int
) -> tuple[_NativeDropout | None, Dropout | None]:
    """The same dropout twice: pointers for the native kernels, contiguous tensors that keep them alive."""
    if dropout is None or dropout[0] == 0:
        return None, None
    p, key, dst_ids, src_ids = dropout
    check_probability(p)
    check_shape("dst_ids", dst_ids, (num_rows,), torch.int64)
    check_shape("src_ids", src_ids, (num_cols,), torch.int64)
    dst_ids, src_ids = dst_ids.contiguous(), src_ids.contiguous()
    return (p, key & _UINT64, pointer(dst_ids), pointer(src_ids)), (p, key, dst_ids, src_ids)
