"""GAT's attention, fused: one logit term a vertex and head; see weft.kernels.attention."""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import torch
from torch import Tensor

from weft.kernels import reference_attention as reference
from weft.kernels.attention import check_attention, check_dropout, check_transposed
from weft.kernels.checks import check_shape, check_state
from weft.kernels.native import code, native_for, pointer, threads
from weft.kernels.reference import Dropout


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
    scalar, num_heads, width = check_attention(indptr, indices, values, m, l)
    check_state("o", o, (m.shape[0], num_heads * width), scalar)
    check_shape("dst_term", dst_term, tuple(m.shape), scalar)
    check_shape("src_term", src_term, (values.shape[0], num_heads), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], values.shape[0])
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
    scalar, num_heads, width = check_attention(indptr, indices, values, m, l)
    check_transposed(indptr, indices, indptr_t, indices_t, order_t)
    check_shape("dst_term", dst_term, tuple(m.shape), scalar)
    check_shape("src_term", src_term, (values.shape[0], num_heads), scalar)
    check_shape("delta", delta, tuple(m.shape), scalar)
    check_shape("grad", grad, (m.shape[0], num_heads * width), scalar)
    check_state("d_dst", d_dst, tuple(m.shape), scalar)
    check_state("d_src", d_src, tuple(src_term.shape), scalar)
    check_state("d_values", d_values, tuple(values.shape), scalar)
    drop, dropout = check_dropout(dropout, m.shape[0], values.shape[0])
    native = native_for(values)
    if native is None:
        reference.gat_backward(
            indptr, indices, indptr_t, indices_t, order_t, dst_term, src_term, values, slope, m, l, delta, grad,
            d_dst, d_src, d_values, dropout,
        )  # fmt: skip
        return
    dst_term, src_term, values = dst_term.contiguous(), src_term.contiguous(), values.contiguous()
    m, l, delta, grad = m.contiguous(), l.contiguous(), delta.contiguous(), grad.contiguous()
    per_row = torch.empty(m.shape[0], 4 * num_heads, dtype=scalar)  # m, 1/l, delta, dst term: one cache line
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
