"""Edge softmax of one interval: the attention of edges from their logits, and weighted sums and dot products with it.

The attention of an edge is exp(logit - max) / sum, with the maximum and the sum over the in-edges of its row. Both are
kept, so that the attention of any edge can be computed again from its logit and the two numbers of its row.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from weft.serverless.propagation import EdgeSources

CHUNK_BYTES = 16 << 20  # of rows that are copied to edges at a time


class SoftmaxState(NamedTuple):
    """Of the in-edges of each row; (0, 1) for a row without edges."""

    max: Tensor  # [N, H]
    sum: Tensor  # [N, H]


def softmax_state(logits: Tensor, rows: Tensor, num_rows: int) -> SoftmaxState:
    """logits: [E, H]; rows: of each edge, [E]."""
    index = rows[:, None].expand_as(logits)
    maximum = logits.new_zeros(num_rows, logits.shape[1]).scatter_reduce_(0, index, logits, "amax", include_self=False)
    total = logits.new_zeros(maximum.shape).index_add_(0, rows, torch.exp(logits - maximum[rows]))
    return SoftmaxState(maximum, total.masked_fill_(total == 0, 1))


def attention_of(logits: Tensor, rows: Tensor, state: SoftmaxState) -> Tensor:
    """[E, H]"""
    return torch.exp(logits - state.max[rows]) / state.sum[rows]


def weighted_sum(weights: Tensor, rows: Tensor, sources: EdgeSources, num_rows: int) -> Tensor:
    """The weighted sum over each row's edges, per head: weights [E, H], sources [E, H*D], result [num_rows, H*D]."""
    heads = weights.shape[1]
    out = sources.rows.new_zeros(num_rows, heads, sources.rows.shape[1] // heads)
    for edges in _chunks(sources):
        values = sources.take(edges).view(-1, heads, out.shape[2])
        out.index_add_(0, rows[edges], weights[edges, :, None] * values)
    return out.flatten(1)


def head_dots(values: Tensor, rows: Tensor, sources: EdgeSources, heads: int) -> Tensor:
    """The dot product of each edge's row in `values` and its source, per head: [E, H]."""
    out = values.new_empty(len(rows), heads)
    for edges in _chunks(sources):
        left, right = values[rows[edges]].view(-1, heads, values.shape[1] // heads), sources.take(edges)
        out[edges] = (left * right.view(left.shape)).sum(2)
    return out


def _chunks(sources: EdgeSources) -> list[slice]:
    step = max(1, CHUNK_BYTES // max(1, sources.rows.shape[1] * sources.rows.element_size()))
    edges = sources.columns.numel()
    return [slice(start, min(start + step, edges)) for start in range(0, edges, step)]
