"""Fused attention: softmax over in-edges and weighted sum, without an E x heads x D tensor.

A destination's state per head is (m, l, o): largest logit, sum of exp(e - m), sum of exp(e - m) z. Blocks of
in-edges are absorbed into it in any order; attend_finish divides. The backward kernels recompute coefficients
from m and l, so they too work block by block.

Three kinds of logits, one course: what differs is a `_Kind`. Rows may be bf16 with a float32 state, or all is of one
dtype. N destinations, M sources, H heads, D columns a head.
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.arguments import Cut, Dropout, accumulator_dtype
from weft.kernels.backends import kernel
from weft.kernels.checks import check_csr, check_probability, check_rows, check_shape, check_state, require

_Inputs = tuple[Tensor, Tensor, Tensor]
_Csr = tuple[Tensor, Tensor]
_Transposed = tuple[Tensor, Tensor, Tensor]


class _Sizes(NamedTuple):
    """Of a block of in-edges, as its values and its state tell."""

    scalar: torch.dtype  # of terms and state
    rows: int
    sources: int
    heads: int
    columns: int  # of a head of the values


@dataclass(frozen=True)
class _Kind:
    """A kind of logits: its kernels, and what its three inputs are."""

    absorb: Callable[..., None]
    backward: Callable[..., None]
    values: int  # which of the inputs is summed
    gradients: tuple[str, str, str]  # names of the inputs' gradients
    check: Callable[[_Sizes, Tensor, Tensor, Tensor], None]


def attend_finish(l: Tensor, o: Tensor) -> None:
    """o /= l, and 0 where there was no in-edge; both in place, l [N, H], o [N, H*D]."""
    check_rows("l", l)
    check_rows("o", o)
    require(
        o.shape[0] == l.shape[0] and l.shape[1] > 0 and o.shape[1] % l.shape[1] == 0,
        f"o has shape {tuple(o.shape)}, which does not fit the {tuple(l.shape)} of l",
    )
    check_state("o", o, tuple(o.shape), l.dtype)
    kernel(reference.attend_finish, o)(l.contiguous(), o)


# ---- GAT: one logit term a vertex and head -----------------------------------------------------------------


def gat_absorb(
    indptr: Tensor,
    indices: Tensor,
    dst_term: Tensor,  # [N, H]
    src_term: Tensor,  # [M, H]
    values: Tensor,  # [M, H*D]
    slope: float,
    m: Tensor,  # [N, H], -inf at the start
    l: Tensor,  # [N, H], 0 at the start
    o: Tensor,  # [N, H*D], 0 at the start
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    """Absorb a block of in-edges with logits leaky_relu(dst_term[i] + src_term[j])."""
    _absorb(_GAT, (indptr, indices), (dst_term, src_term, values), slope, (m, l, o), dropout, cut)


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
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    csr, transposed, inputs = (indptr, indices), (indptr_t, indices_t, order_t), (dst_term, src_term, values)
    _backward(
        _GAT, csr, transposed, inputs, slope, (m, l), delta, grad, (d_dst, d_src, d_values), dropout, (cut, cut_t)
    )


def _check_gat(sizes: _Sizes, dst_term: Tensor, src_term: Tensor, values: Tensor) -> None:
    check_shape("dst_term", dst_term, (sizes.rows, sizes.heads), sizes.scalar)
    check_shape("src_term", src_term, (sizes.sources, sizes.heads), sizes.scalar)


# ---- GATv2: keys are the values ----------------------------------------------------------------------------


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
    cut: Cut | None = None,
) -> None:
    """Absorb a block of in-edges with logits att . leaky_relu(query[i] + key[j])."""
    _absorb(_GATV2, (indptr, indices), (query, key, att), slope, (m, l, o), dropout, cut)


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
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    csr, transposed, inputs = (indptr, indices), (indptr_t, indices_t, order_t), (query, key, att)
    _backward(
        _GATV2, csr, transposed, inputs, slope, (m, l), delta, grad, (d_query, d_key, d_att), dropout, (cut, cut_t)
    )


def _check_gatv2(sizes: _Sizes, query: Tensor, key: Tensor, att: Tensor) -> None:
    check_shape("query", query, (sizes.rows, key.shape[1]), key.dtype)
    check_shape("att", att, (sizes.heads, sizes.columns), sizes.scalar)


# ---- scaled dot products -----------------------------------------------------------------------------------


def dot_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,  # [N, H*D]
    key: Tensor,  # [M, H*D]
    values: Tensor,  # [M, H*Dv]
    scale: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,  # [N, H*Dv]
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    """Absorb a block of in-edges with logits scale * query[i] . key[j]."""
    _absorb(_DOT, (indptr, indices), (query, key, values), scale, (m, l, o), dropout, cut)


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
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    """Gradients of a block of in-edges, given the final m and l of all blocks."""
    csr, transposed, inputs = (indptr, indices), (indptr_t, indices_t, order_t), (query, key, values)
    _backward(
        _DOT, csr, transposed, inputs, scale, (m, l), delta, grad, (d_query, d_key, d_values), dropout, (cut, cut_t)
    )


def _check_dot(sizes: _Sizes, query: Tensor, key: Tensor, values: Tensor) -> None:
    check_rows("query", query)
    columns = query.shape[1]
    require(columns % sizes.heads == 0, f"{columns} columns of query do not split into {sizes.heads} equal heads")
    check_shape("query", query, (sizes.rows, columns), values.dtype)
    check_shape("key", key, (sizes.sources, columns), values.dtype)


_GAT = _Kind(reference.gat_absorb, reference.gat_backward, 2, ("d_dst", "d_src", "d_values"), _check_gat)
_GATV2 = _Kind(reference.gatv2_absorb, reference.gatv2_backward, 1, ("d_query", "d_key", "d_att"), _check_gatv2)
_DOT = _Kind(reference.dot_absorb, reference.dot_backward, 2, ("d_query", "d_key", "d_values"), _check_dot)


# ---- what the three have in common -------------------------------------------------------------------------


def _absorb(
    kind: _Kind,
    csr: _Csr,
    inputs: _Inputs,
    number: float,
    state: _Inputs,
    dropout: Dropout | None,
    cut: Cut | None,
) -> None:
    values, (m, l, o) = inputs[kind.values], state
    sizes = _check_block(csr, values, m, l)
    kind.check(sizes, *inputs)
    check_state("o", o, (sizes.rows, sizes.heads * sizes.columns), sizes.scalar)
    first, second, third = inputs
    kernel(kind.absorb, values)(
        *csr, first.contiguous(), second.contiguous(), third.contiguous(), number, m, l, o,
        _checked_dropout(dropout, sizes), cut,
    )  # fmt: skip


def _backward(
    kind: _Kind,
    csr: _Csr,
    transposed: _Transposed,
    inputs: _Inputs,
    number: float,
    softmax: tuple[Tensor, Tensor],  # m and l
    delta: Tensor,
    grad: Tensor,
    gradients: _Inputs,
    dropout: Dropout | None,
    cuts: tuple[Cut | None, Cut | None],  # of the block and of its transpose
) -> None:
    values, (m, l) = inputs[kind.values], softmax
    sizes = _check_block(csr, values, m, l)
    _check_transposed(csr, transposed, sizes)
    kind.check(sizes, *inputs)
    check_shape("delta", delta, (sizes.rows, sizes.heads), sizes.scalar)
    check_shape("grad", grad, (sizes.rows, sizes.heads * sizes.columns), sizes.scalar)
    for name, gradient, given in zip(kind.gradients, gradients, inputs, strict=True):
        check_state(name, gradient, tuple(given.shape), sizes.scalar)
    first, second, third = inputs
    kernel(kind.backward, values)(
        *csr, *transposed, first.contiguous(), second.contiguous(), third.contiguous(), number, m, l,
        delta.contiguous(), grad.contiguous(), *gradients, _checked_dropout(dropout, sizes), *cuts,
    )  # fmt: skip


def _check_block(csr: _Csr, values: Tensor, m: Tensor, l: Tensor) -> _Sizes:
    check_rows("values", values)
    sources, width = values.shape
    check_csr(*csr, sources)
    scalar, rows = accumulator_dtype(values.dtype), csr[0].numel() - 1
    if m.dim() != 2 or m.shape[1] == 0:
        raise ValueError(f"m must be [rows, heads], but its shape is {tuple(m.shape)}")
    heads = m.shape[1]
    if width % heads:
        raise ValueError(f"{width} columns do not split into {heads} equal heads")
    check_state("m", m, (rows, heads), scalar)
    check_state("l", l, (rows, heads), scalar)
    return _Sizes(scalar, rows, sources, heads, width // heads)


def _check_transposed(csr: _Csr, transposed: _Transposed, sizes: _Sizes) -> None:
    (_, indices), (indptr_t, indices_t, order_t) = csr, transposed
    check_csr(indptr_t, indices_t, sizes.rows)
    require(
        indptr_t.numel() - 1 == sizes.sources,
        f"indptr_t has {indptr_t.numel() - 1} rows, but there are {sizes.sources} sources",
    )
    require(
        indices.numel() == indices_t.numel(),
        f"the block has {indices.numel()} edges, but its transpose has {indices_t.numel()}",
    )
    check_shape("order_t", order_t, (indices.numel(),), torch.int64)
    require(order_t.is_contiguous(), "order_t must be contiguous")


def _checked_dropout(dropout: Dropout | None, sizes: _Sizes) -> Dropout | None:
    """The same with contiguous ids; None where nothing is dropped."""
    if dropout is None or dropout[0] == 0:
        return None
    p, key, dst_ids, src_ids = dropout
    check_probability(p)
    check_shape("dst_ids", dst_ids, (sizes.rows,), torch.int64)
    check_shape("src_ids", src_ids, (sizes.sources,), torch.int64)
    return p, key, dst_ids.contiguous(), src_ids.contiguous()
