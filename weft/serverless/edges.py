"""Attention of one interval: what a graph server does with edges' logits, forward and backward.

A row's weights are exp(logit - m) / l over its in-edges, with m their maximum and l their sum; both are kept, so that
whoever has a row's m and l can make the weight of any one of its edges again.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = 16 << 20  # of values that edges have side by side


class Normaliser(NamedTuple):
    most: Tensor  # [N, H]
    total: Tensor  # [N, H]


def normaliser(logits: Tensor, rows: Tensor, num_rows: int) -> Normaliser:
    """Of each row's edges; a row without edges has (0, 1)."""
    index = rows[:, None].expand_as(logits)
    most = logits.new_zeros(num_rows, logits.shape[1]).scatter_reduce_(0, index, logits, "amax", include_self=False)
    total = logits.new_zeros(most.shape).index_add_(0, rows, torch.exp(logits - most[rows]))
    return Normaliser(most, total.masked_fill_(total == 0, 1))


def weights_of(logits: Tensor, rows: Tensor, by: Normaliser) -> Tensor:
    return torch.exp(logits - by.most[rows]) / by.total[rows]


def weighted_sum(weights: Tensor, rows: Tensor, values: Tensor, columns: Tensor, num_rows: int) -> Tensor:
    """Of each row's edges, head by head: weights [E, H], values [M, H*D]; [num_rows, H*D]."""
    heads = weights.shape[1]
    out = values.new_zeros(num_rows, heads, values.shape[1] // heads)
    for run in _runs(len(rows), values):
        taken = values[columns[run]].view(-1, heads, out.shape[2])
        out.index_add_(0, rows[run], weights[run, :, None] * taken)
    return out.flatten(1)


def head_dots(left: Tensor, rows: Tensor, right: Tensor, columns: Tensor, heads: int) -> Tensor:
    """<left of the edge's row, right of its column> of each head, [E, H]."""
    out = left.new_empty(len(rows), heads)
    for run in _runs(len(rows), left):
        one, other = left[rows[run]].view(-1, heads, left.shape[1] // heads), right[columns[run]]
        out[run] = (one * other.view(one.shape)).sum(2)
    return out


def _runs(edges: int, values: Tensor) -> list[slice]:
    step = max(1, CHUNK_BYTES // max(1, values.shape[1] * values.element_size()))
    return [slice(start, min(start + step, edges)) for start in range(0, edges, step)]
