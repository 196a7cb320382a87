"""GATv2's attention, fused: keys are the values; see weft.kernels.attention."""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import torch
from torch import Tensor

from weft.kernels import reference_attention as reference
from weft.kernels.attention import check_attention, check_dropout, check_transposed
from weft.kernels.checks import check_shape, check_state
from weft.kernels.native import code, native_for, pointer, threads
from weft.kernels.reference import Dropout


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
    scalar, num_heads, width = check_attention(indptr, indices, key, m, l)
    check_state("o", o, (m.shape[0], num_heads * width), scalar)
    check_shape("query", query, (m.shape[0], key.shape[1]), key.dtype)
    check_shape("att", att, (num_heads, width), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], key.shape[0])
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
    scalar, num_heads, width = check_attention(indptr, indices, key, m, l)
    check_transposed(indptr, indices, indptr_t, indices_t, order_t)
    check_shape("query", query, (m.shape[0], key.shape[1]), key.dtype)
    check_shape("att", att, (num_heads, width), scalar)
    check_shape("delta", delta, tuple(m.shape), scalar)
    check_shape("grad", grad, tuple(query.shape), scalar)
    check_state("d_query", d_query, tuple(query.shape), scalar)
    check_state("d_key", d_key, tuple(key.shape), scalar)
    check_state("d_att", d_att, tuple(att.shape), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], key.shape[0])
    native = native_for(key)
    if native is None:
        reference.gatv2_backward(
            indptr, indices, indptr_t, indices_t, order_t, query, key, att, slope, m, l, delta, grad, d_query, d_key,
            d_att, dropout,
        )  # fmt: skip
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
