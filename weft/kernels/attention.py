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


def gat_absorb(
    indptr: Tensor,
    indices: Tensor,
    dst_term: Tensor,  # [N, H]
    src_term: Tensor,  # [M, H]
    values: Tensor,  # [M, H*D]; bf16 with float32 terms and state, or all of one dtype
    slope: float,
    m: Tensor,  # [N, H], -inf at the start
    l: Tensor,  # [N, H], 0 at the start
    o: Tensor,  # [N, H*D], 0 at the start
    dropout: Dropout | None = None,
) -> None:
    """Absorb a block of in-edges with logits leaky_relu(dst_term[i] + src_term[j])."""
    scalar, num_heads, width = _check_state(indptr, indices, values, m, l)
    check_state("o", o, (m.shape[0], num_heads * width), scalar)
    check_shape("dst_term", dst_term, tuple(m.shape), scalar)
    check_shape("src_term", src_term, (values.shape[0], num_heads), scalar)
    drop, dropout = _check_dropout(dropout, m.shape[0], values.shape[0])
    native = native_for(values)
    if native is None:
        reference.gat_absorb(indptr, indices, dst_term, src_term, values, slope, m, l, o, dropout)
        return
    dst_term, src_term, values = dst_term.contiguous(), src_term.contiguous(), values.contiguous()
    native.gat_absorb(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(dst_term), pointer(src_term), pointer(values), code(values), num_heads, width, slope),
        (pointer(m), pointer(l), pointer(o)),
        drop,
        threads(),
    )


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


def gat_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,  # int64 [E]: forward position of every transposed edge
    dst_term: Tensor,
    src_term: Tensor,
    values: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,  # [N, H] = sum over D of grad * final o
    grad: Tensor,  # [N, H*D]
    d_dst: Tensor,  # [N, H], added into, as the next two
    d_src: Tensor,  # [M, H]
    d_values: Tensor,  # [M, H*D]
    dropout: Dropout | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    scalar, num_heads, width = _check_state(indptr, indices, values, m, l)
    _check_transposed(indptr, indices, indptr_t, indices_t, order_t)
    check_shape("dst_term", dst_term, tuple(m.shape), scalar)
    check_shape("src_term", src_term, (values.shape[0], num_heads), scalar)
    check_shape("delta", delta, tuple(m.shape), scalar)
    check_shape("grad", grad, (m.shape[0], num_heads * width), scalar)
    check_state("d_dst", d_dst, tuple(m.shape), scalar)
    check_state("d_src", d_src, tuple(src_term.shape), scalar)
    check_state("d_values", d_values, tuple(values.shape), scalar)
    drop, dropout = _check_dropout(dropout, m.shape[0], values.shape[0])
    native = native_for(values)
    if native is None:
        reference.gat_backward(
            indptr,
            indices,
            indptr_t,
            indices_t,
            order_t,
            dst_term,
            src_term,
            values,
            slope,
            m,
            l,
            delta,
            grad,
            d_dst,
            d_src,
            d_values,
            dropout,
        )
        return
    dst_term, src_term, values = dst_term.contiguous(), src_term.contiguous(), values.contiguous()
    m, l, delta, grad = m.contiguous(), l.contiguous(), delta.contiguous(), grad.contiguous()
    per_row = torch.empty(m.shape[0], 4 * num_heads, dtype=scalar)  # dst term, m, 1/l, delta: one cache line
    d_logits = torch.empty(indices.numel(), num_heads, dtype=scalar)  # forward order
    native.gat_backward(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(indptr_t), pointer(indices_t), pointer(order_t), values.shape[0]),
        (pointer(dst_term), pointer(src_term), pointer(values), code(values), num_heads, width, slope),
        (pointer(m), pointer(l), pointer(delta), pointer(grad)),
        (pointer(d_dst), pointer(d_src), pointer(d_values)),
        (pointer(per_row), pointer(d_logits)),
        drop,
        threads(),
    )


def gatv2_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,  # [N, H*D]
    key: Tensor,  # [M, H*D], also the values
    att: Tensor,  # [H, D]
    slope: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
) -> None:
    """Absorb a block of in-edges with logits att . leaky_relu(query[i] + key[j])."""
    scalar, num_heads, width = _check_state(indptr, indices, key, m, l)
    check_state("o", o, (m.shape[0], num_heads * width), scalar)
    check_shape("query", query, (m.shape[0], key.shape[1]), key.dtype)
    check_shape("att", att, (num_heads, width), scalar)
    drop, dropout = _check_dropout(dropout, m.shape[0], key.shape[0])
    native = native_for(key)
    if native is None:
        reference.gatv2_absorb(indptr, indices, query, key, att, slope, m, l, o, dropout)
        return
    query, key, att = query.contiguous(), key.contiguous(), att.contiguous()
    native.gatv2_absorb(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(query), pointer(key), code(key), pointer(att), num_heads, width, slope),
        (pointer(m), pointer(l), pointer(o)),
        drop,
        threads(),
    )


def gatv2_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    query: Tensor,
    key: Tensor,
    att: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,
    grad: Tensor,
    d_query: Tensor,  # [N, H*D], added into, as the next two
    d_key: Tensor,  # [M, H*D]
    d_att: Tensor,  # [H, D]
    dropout: Dropout | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    scalar, num_heads, width = _check_state(indptr, indices, key, m, l)
    _check_transposed(indptr, indices, indptr_t, indices_t, order_t)
    check_shape("query", query, (m.shape[0], key.shape[1]), key.dtype)
    check_shape("att", att, (num_heads, width), scalar)
    check_shape("delta", delta, tuple(m.shape), scalar)
    check_shape("grad", grad, tuple(query.shape), scalar)
    check_state("d_query", d_query, tuple(query.shape), scalar)
    check_state("d_key", d_key, tuple(key.shape), scalar)
    check_state("d_att", d_att, tuple(att.shape), scalar)
    drop, dropout = _check_dropout(dropout, m.shape[0], key.shape[0])
    native = native_for(key)
    if native is None:
        reference.gatv2_backward(
            indptr,
            indices,
            indptr_t,
            indices_t,
            order_t,
            query,
            key,
            att,
            slope,
            m,
            l,
            delta,
            grad,
            d_query,
            d_key,
            d_att,
            dropout,
        )
        return
    query, key, att = query.contiguous(), key.contiguous(), att.contiguous()
    m, l, delta, grad = m.contiguous(), l.contiguous(), delta.contiguous(), grad.contiguous()
    scratch = torch.empty(indices.numel(), 2 * num_heads, dtype=scalar)  # share, d_logit; forward order
    native.gatv2_backward(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(indptr_t), pointer(indices_t), pointer(order_t), key.shape[0]),
        (pointer(query), pointer(key), code(key), pointer(att), num_heads, width, slope),
        (pointer(m), pointer(l), pointer(delta), pointer(grad)),
        (pointer(d_query), pointer(d_key), pointer(d_att)),
        pointer(scratch),
        drop,
        threads(),
    )


def _check_state(indptr: Tensor, indices: Tensor, values: Tensor, m: Tensor, l: Tensor) -> tuple[torch.dtype, int, int]:
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


def _check_transposed(indptr: Tensor, indices: Tensor, indptr_t: Tensor, indices_t: Tensor, order_t: Tensor) -> None:
    check_csr(indptr_t, indices_t, indptr.numel() - 1)
    require(
        indices.numel() == indices_t.numel(),
        f"the block has {indices.numel()} edges, but its transpose has {indices_t.numel()}",
    )
    check_shape("order_t", order_t, (indices.numel(),), torch.int64)
    require(order_t.is_contiguous(), "order_t must be contiguous")


def _check_dropout(
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
