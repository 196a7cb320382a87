"""Fused attention of three kinds: the same blocks and states, other inputs and other scratch.

Inputs of the three: two terms and the values (gat), queries, keys and the attention vector (gatv2), queries, keys and
values (dot). Each name below that begins with an underscore builds one tuple that the C++ module takes.
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

from torch import Tensor

from weft.kernels import _native
from weft.kernels.arguments import Cut, Dropout
from weft.kernels.native.pointers import UINT64, code, pointer, threads


def attend_finish(l: Tensor, o: Tensor) -> None:
    rows, heads = l.shape
    _native.attend_finish(pointer(l), pointer(o), code(o), rows, heads, o.shape[1] // heads, threads())


def gat_absorb(
    indptr: Tensor,
    indices: Tensor,
    dst_term: Tensor,
    src_term: Tensor,
    values: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs, state = _gat(dst_term, src_term, values, slope, m), (pointer(m), pointer(l), pointer(o))
    _native.gat_absorb(_csr(indptr, indices), inputs, state, _drop(dropout), threads())


def gat_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    dst_term: Tensor,
    src_term: Tensor,
    values: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,
    grad: Tensor,
    d_dst: Tensor,
    d_src: Tensor,
    d_values: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    per_row = m.new_empty(m.shape[0], 4 * m.shape[1])  # m, 1/l, delta, dst term: one cache line
    d_logits = m.new_empty(indices.numel(), m.shape[1])  # forward order
    _native.gat_backward(
        _csr(indptr, indices), _transposed(indptr_t, indices_t, order_t), _gat(dst_term, src_term, values, slope, m),
        _final(m, l, delta, grad), (pointer(d_dst), pointer(d_src), pointer(d_values)),
        (pointer(per_row), pointer(d_logits)), _drop(dropout), threads(),
    )  # fmt: skip


def gatv2_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    att: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs, state = _gatv2(query, key, att, slope), (pointer(m), pointer(l), pointer(o))
    _native.gatv2_absorb(_csr(indptr, indices), inputs, state, _drop(dropout), threads())


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
    d_query: Tensor,
    d_key: Tensor,
    d_att: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    scratch = m.new_empty(indices.numel(), 2 * m.shape[1])  # share, d_logit; forward order
    _native.gatv2_backward(
        _csr(indptr, indices), _transposed(indptr_t, indices_t, order_t), _gatv2(query, key, att, slope),
        _final(m, l, delta, grad), (pointer(d_query), pointer(d_key), pointer(d_att)),
        pointer(scratch), _drop(dropout), threads(),
    )  # fmt: skip


def dot_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    scale: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs, state = _dot(query, key, values, scale, m), (pointer(m), pointer(l), pointer(o))
    _native.dot_absorb(_csr(indptr, indices), inputs, state, _drop(dropout), threads())


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
    delta: Tensor,
    grad: Tensor,
    d_query: Tensor,
    d_key: Tensor,
    d_values: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    per_row = m.new_empty(m.shape[0], 3 * m.shape[1])  # m, 1/l, delta side by side
    d_logits = m.new_empty(indices.numel(), m.shape[1])  # forward order
    _native.dot_backward(
        _csr(indptr, indices), _transposed(indptr_t, indices_t, order_t), _dot(query, key, values, scale, m),
        _final(m, l, delta, grad), (pointer(d_query), pointer(d_key), pointer(d_values)),
        (pointer(per_row), pointer(d_logits)), _drop(dropout), threads(),
    )  # fmt: skip


def _csr(indptr: Tensor, indices: Tensor) -> tuple[int, int, int, int]:
    return pointer(indptr), pointer(indices), indptr.numel() - 1, indices.numel()


def _transposed(indptr_t: Tensor, indices_t: Tensor, order_t: Tensor) -> tuple[int, int, int, int]:
    return pointer(indptr_t), pointer(indices_t), pointer(order_t), indptr_t.numel() - 1


def _final(m: Tensor, l: Tensor, delta: Tensor, grad: Tensor) -> tuple[int, int, int, int]:
    return pointer(m), pointer(l), pointer(delta), pointer(grad)


def _drop(dropout: Dropout | None) -> tuple[float, int, int, int] | None:
    if dropout is None:
        return None
    p, key, dst_ids, src_ids = dropout
    return p, key & UINT64, pointer(dst_ids), pointer(src_ids)


def _gat(
    dst_term: Tensor, src_term: Tensor, values: Tensor, slope: float, m: Tensor
) -> tuple[int, int, int, int, int, int, float]:
    heads = m.shape[1]
    rows = pointer(dst_term), pointer(src_term), pointer(values)
    return *rows, code(values), heads, values.shape[1] // heads, slope


def _gatv2(query: Tensor, key: Tensor, att: Tensor, slope: float) -> tuple[int, int, int, int, int, int, float]:
    heads, columns = att.shape
    return pointer(query), pointer(key), code(key), pointer(att), heads, columns, slope


def _dot(
    query: Tensor, key: Tensor, values: Tensor, scale: float, m: Tensor
) -> tuple[int, int, int, int, int, int, int, float]:
    heads = m.shape[1]
    rows = pointer(query), pointer(key), pointer(values)
    return *rows, code(values), heads, key.shape[1] // heads, values.shape[1] // heads, scale
