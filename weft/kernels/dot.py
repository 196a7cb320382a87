"""Scaled dot products as logits, fused with the softmax; see weft.kernels.attention."""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import torch
from torch import Tensor

from weft.kernels import reference_attention as reference
from weft.kernels.attention import check_attention, check_dropout, check_transposed
from weft.kernels.checks import check_rows, check_shape, check_state, require
from weft.kernels.native import code, native_for, pointer, threads
from weft.kernels.reference import Dropout


def dot_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,  # [N, H*D]; bf16 rows with a float32 state, or all of one dtype
    key: Tensor,  # [M, H*D]
    values: Tensor,  # [M, H*Dv]
    scale: float,
    m: Tensor,  # [N, H], -inf at the start
    l: Tensor,  # [N, H], 0 at the start
    o: Tensor,  # [N, H*Dv], 0 at the start
    dropout: Dropout | None = None,
) -> None:
    """Absorb a block of in-edges with logits scale * query[i] . key[j]."""
    scalar, num_heads, value_width = check_attention(indptr, indices, values, m, l)
    width = _check_inputs(query, key, values, m)
    check_state("o", o, (m.shape[0], num_heads * value_width), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], values.shape[0])
    native = native_for(values)
    if native is None:
        reference.dot_absorb(indptr, indices, query, key, values, scale, m, l, o, dropout)
        return
    query, key, values = query.contiguous(), key.contiguous(), values.contiguous()
    native.dot_absorb(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(query), pointer(key), pointer(values), code(values), num_heads, width, value_width, scale),
        (pointer(m), pointer(l), pointer(o)),
        drop,
        threads(),
    )


def dot_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    scale: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,  # [N, H] = sum over Dv of grad * final o
    grad: Tensor,  # [N, H*Dv]
    d_query: Tensor,  # [N, H*D], added into, as the next two
    d_key: Tensor,  # [M, H*D]
    d_values: Tensor,  # [M, H*Dv]
    dropout: Dropout | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    scalar, num_heads, value_width = check_attention(indptr, indices, values, m, l)
    check_transposed(indptr, indices, indptr_t, indices_t, order_t)
    width = _check_inputs(query, key, values, m)
    check_shape("delta", delta, tuple(m.shape), scalar)
    check_shape("grad", grad, (m.shape[0], num_heads * value_width), scalar)
    check_state("d_query", d_query, tuple(query.shape), scalar)
    check_state("d_key", d_key, tuple(key.shape), scalar)
    check_state("d_values", d_values, tuple(values.shape), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], values.shape[0])
    native = native_for(values)
    if native is None:
        reference.dot_backward(
            indptr, indices, indptr_t, indices_t, order_t, query, key, values, scale, m, l, delta, grad,
            d_query, d_key, d_values, dropout,
        )  # fmt: skip
        return
    query, key, values = query.contiguous(), key.contiguous(), values.contiguous()
    m, l, delta, grad = m.contiguous(), l.contiguous(), delta.contiguous(), grad.contiguous()
    per_row = torch.empty(m.shape[0], 3 * num_heads, dtype=scalar)  # m, 1/l, delta side by side
    d_logits = torch.empty(indices.numel(), num_heads, dtype=scalar)  # forward order
    native.dot_backward(
        (pointer(indptr), pointer(indices), m.shape[0], indices.numel()),
        (pointer(indptr_t), pointer(indices_t), pointer(order_t), values.shape[0]),
        (pointer(query), pointer(key), pointer(values), code(values), num_heads, width, value_width, scale),
        (pointer(m), pointer(l), pointer(delta), pointer(grad)),
        (pointer(d_query), pointer(d_key), pointer(d_values)),
        (pointer(per_row), pointer(d_logits)),
        drop,
        threads(),
    )


def _check_inputs(query: Tensor, key: Tensor, values: Tensor, m: Tensor) -> int:
    """Columns a head of queries and keys."""
    check_rows("query", query)
    require(
        query.shape[1] % m.shape[1] == 0,
        f"{query.shape[1]} columns of query do not split into {m.shape[1]} equal heads",
    )
    check_shape("query", query, (m.shape[0], query.shape[1]), values.dtype)
    check_shape("key", key, (values.shape[0], query.shape[1]), values.dtype)
    return query.shape[1] // m.shape[1]
