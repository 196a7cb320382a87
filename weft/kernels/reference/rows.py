"""Sums and maxima over in-edges, and rows moved by index, in plain torch.

These write the E x D messages that other backends avoid: they are meant to be read, not to be fast.
"""

import torch
from torch import Tensor

from weft.kernels.arguments import Cut, accumulator_dtype
from weft.kernels.reference.csr import rows_of


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,  # [M, D]
    weight: Tensor | None = None,  # [E]
    row_scale: Tensor | None = None,  # [N]
    col_scale: Tensor | None = None,  # [M]
    out: Tensor | None = None,  # [N, D]
    accumulate: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    columns = indices.long()
    messages = x[columns].to(accumulator_dtype(x.dtype))
    if weight is not None:
        messages = messages * weight[:, None]
    if col_scale is not None:
        messages = messages * col_scale[columns][:, None]
    total = messages.new_zeros(indptr.numel() - 1, x.shape[1]).index_add_(0, rows_of(indptr), messages)
    if row_scale is not None:
        total = total * row_scale[:, None]
    if out is None:
        return total.to(x.dtype)
    if accumulate:
        total += out
    return out.copy_(total)


def max_absorb(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    count: Tensor,
    cut: Cut | None = None,
) -> None:
    rows = rows_of(indptr)
    messages = x[indices.long()].to(out.dtype)
    if weight is not None:
        messages = messages * weight[:, None]
    index = rows[:, None].expand_as(messages)
    largest = out.clone().scatter_reduce_(0, index, messages, "amax", include_self=True)
    count.masked_fill_(largest > out, 0)
    out.copy_(largest)
    count.index_add_(0, rows, (messages == out[rows]).to(torch.int32))


def max_finish(out: Tensor, count: Tensor) -> None:
    out.masked_fill_(count == 0, 0.0)


def max_backward(
    indptr_t: Tensor,
    indices_t: Tensor,
    x: Tensor,  # [M, D]
    weight_t: Tensor | None,  # [E] in transposed order
    out: Tensor,  # [N, D]
    grad_share: Tensor,  # [N, D] = grad / count
    dx: Tensor,  # [M, D]
    cut_t: Cut | None = None,
) -> None:
    sources, targets = rows_of(indptr_t), indices_t.long()
    messages = x[sources].to(out.dtype)
    share = grad_share[targets]
    if weight_t is not None:
        messages = messages * weight_t[:, None]
        share = share * weight_t[:, None]
    dx.index_add_(0, sources, torch.where(messages == out[targets], share, 0.0).to(dx.dtype))


def gather(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    rows = x[index.long()]
    return rows if out is None else out.copy_(rows)


def scatter_add(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    if out.dtype == torch.bfloat16:  # several rows may meet: round once, not after each
        return out.copy_(out.float().index_add_(0, index.long(), rows.float()))
    return out.index_add_(0, index.long(), rows.to(out.dtype))
