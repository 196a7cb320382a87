"""Attention in plain torch, block by block.

State of a destination and head: m (largest logit so far), l (sum of exp(e - m)), o (sum of exp(e - m) z).
Blocks of in-edges may come in any order; dropout zeroes normalised coefficients, so it touches o, not l.
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import torch
from torch import Tensor

from weft.kernels.arguments import Cut, Dropout
from weft.kernels.reference.csr import rows_of
from weft.kernels.reference.masks import keep_edges


def _split(rows: Tensor, state: Tensor) -> Tensor:
    """[R, H*D] -> [R, H, D], with H as in the state [N, H]; R may be 0."""
    return rows.view(rows.shape[0], state.shape[1], rows.shape[1] // state.shape[1])


def _mask(indptr: Tensor, indices: Tensor, like: Tensor, dropout: Dropout | None) -> Tensor:
    """Factor of every normalised coefficient, [E, H]: 0 or 1 / (1 - p)."""
    if dropout is None or dropout[0] == 0:
        return torch.ones_like(like)
    return keep_edges(indptr, indices, like.shape[1], dropout).to(like.dtype) / (1.0 - dropout[0])


def _absorb(rows: Tensor, logits: Tensor, mask: Tensor, values: Tensor, m: Tensor, l: Tensor, o: Tensor) -> None:
    """logits, mask [E, H]; values [E, H, D]; m, l [N, H]; o [N, H*D]."""
    largest = m.clone().scatter_reduce_(0, rows[:, None].expand_as(logits), logits, "amax", include_self=True)
    shrink = torch.where(torch.isinf(largest), torch.ones_like(m), torch.exp(m - largest))
    shrink[torch.isinf(m)] = 0.0
    share = torch.exp(logits - largest[rows])
    m.copy_(largest)
    l.mul_(shrink).index_add_(0, rows, share)
    state = _split(o, m)
    state.mul_(shrink[:, :, None]).index_add_(0, rows, (share * mask)[:, :, None] * values)


def _gat_logits(rows: Tensor, cols: Tensor, dst_term: Tensor, src_term: Tensor, slope: float) -> Tensor:
    return torch.nn.functional.leaky_relu(dst_term[rows] + src_term[cols], slope)


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
    rows, cols = rows_of(indptr), indices.long()
    logits = _gat_logits(rows, cols, dst_term, src_term, slope)
    heads = _split(values.to(o.dtype), m)
    _absorb(rows, logits, _mask(indptr, indices, logits, dropout), heads[cols], m, l, o)


def attend_finish(l: Tensor, o: Tensor) -> None:
    state = _split(o, l)
    state.copy_(torch.where(l[:, :, None] == 0, 0.0, state / l[:, :, None]))


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
    delta: Tensor,  # [N, H] = sum over D of grad * final o
    grad: Tensor,  # [N, H*D]
    d_dst: Tensor,  # [N, H], added into, as the next two
    d_src: Tensor,  # [M, H]
    d_values: Tensor,  # [M, H*D]
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    rows, cols = rows_of(indptr), indices.long()
    raw = dst_term[rows] + src_term[cols]
    share = torch.exp(torch.nn.functional.leaky_relu(raw, slope) - m[rows]) / l[rows]
    mask = _mask(indptr, indices, raw, dropout)
    heads = _split(values.to(d_dst.dtype), m)[cols]
    g = _split(grad.to(d_dst.dtype), m)[rows]
    d_logit = share * (mask * (g * heads).sum(-1) - delta[rows])
    d_raw = torch.where(raw > 0, d_logit, slope * d_logit)
    d_dst.index_add_(0, rows, d_raw)
    d_src.index_add_(0, cols, d_raw)
    d_values.index_add_(0, cols, ((share * mask)[:, :, None] * g).flatten(1).to(d_values.dtype))


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
    rows, cols = rows_of(indptr), indices.long()
    sources = key.to(o.dtype).view(key.shape[0], *att.shape)[cols]
    raw = query.to(o.dtype).view(query.shape[0], *att.shape)[rows] + sources
    logits = (torch.nn.functional.leaky_relu(raw, slope) * att).sum(-1)
    _absorb(rows, logits, _mask(indptr, indices, logits, dropout), sources, m, l, o)


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
    rows, cols = rows_of(indptr), indices.long()
    sources = key.to(d_att.dtype).view(key.shape[0], *att.shape)[cols]
    raw = query.to(d_att.dtype).view(query.shape[0], *att.shape)[rows] + sources
    active = torch.nn.functional.leaky_relu(raw, slope)
    logits = (active * att).sum(-1)
    share = torch.exp(logits - m[rows]) / l[rows]
    mask = _mask(indptr, indices, logits, dropout)
    g = _split(grad.to(d_att.dtype), m)[rows]
    d_logit = share * (mask * (g * sources).sum(-1) - delta[rows])
    d_att += (d_logit[:, :, None] * active).sum(0)
    d_raw = d_logit[:, :, None] * att
    d_raw = torch.where(raw > 0, d_raw, slope * d_raw)  # not a tensor of slopes: that would be float32
    d_query.index_add_(0, rows, d_raw.flatten(1).to(d_query.dtype))
    d_source = d_raw + (share * mask)[:, :, None] * g
    d_key.index_add_(0, cols, d_source.flatten(1).to(d_key.dtype))


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
    rows, cols = rows_of(indptr), indices.long()
    logits = scale * (_split(query.to(o.dtype), m)[rows] * _split(key.to(o.dtype), m)[cols]).sum(-1)
    heads = _split(values.to(o.dtype), m)
    _absorb(rows, logits, _mask(indptr, indices, logits, dropout), heads[cols], m, l, o)


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
    grad: Tensor,  # [N, H*Dv]
    d_query: Tensor,  # [N, H*D], added into, as the next two
    d_key: Tensor,  # [M, H*D]
    d_values: Tensor,  # [M, H*Dv]
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    rows, cols = rows_of(indptr), indices.long()
    q, k = _split(query.to(m.dtype), m)[rows], _split(key.to(m.dtype), m)[cols]
    logits = scale * (q * k).sum(-1)
    share = torch.exp(logits - m[rows]) / l[rows]
    mask = _mask(indptr, indices, logits, dropout)
    z, g = _split(values.to(m.dtype), m)[cols], _split(grad.to(m.dtype), m)[rows]
    d_dot = scale * share * (mask * (g * z).sum(-1) - delta[rows])
    d_query.index_add_(0, rows, (d_dot[:, :, None] * k).flatten(1))
    d_key.index_add_(0, cols, (d_dot[:, :, None] * q).flatten(1))
    d_values.index_add_(0, cols, ((share * mask)[:, :, None] * g).flatten(1))
