"""A reducer of a user's own, in one file outside the package: the logarithm of a sum of exponentials.

A layer that wants it imports this module and calls `graph.aggregate(x, reduce="logsumexp")`.
"""

import torch
from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.reducers import ALL, Sides, Tensors, Traits, register_reducer
from weft.graph.csr import CSR


class LogSumExp:
    """Per row and column the largest message so far, and the sum of exponentials relative to it; 0 without in-edges."""

    traits = Traits(unroundable="it is read as a softmax is, whose rounded logits are biased")

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        total = src[0].new_zeros(num_rows, src[0].shape[1])
        return torch.full_like(total, -torch.inf), total

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        largest, total = state
        rows, messages = _rows_of(block.csr), src[0][block.csr.indices.long()]
        before = largest.clone()
        largest.scatter_reduce_(0, rows[:, None].expand_as(messages), messages, "amax")
        total *= torch.where(total > 0, (before - largest).exp(), 0.0)
        total.index_add_(0, rows, (messages - largest[rows]).exp())

    def finish(self, state: Tensors, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        largest, total = state
        return torch.where(total > 0, largest + total.log(), 0.0), ()

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> Tensors:
        return grad, out

    def backward_block(
        self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        grad, out = state
        rows, columns = _rows_of(block.csr), block.csr.indices.long()
        into[0].zero_().index_add_(0, columns, grad[rows] * (src[0][columns] - out[rows]).exp())

    def finish_backward(self, state: Tensors) -> Tensors:
        return ()


def _rows_of(csr: CSR) -> Tensor:
    """The row of every edge."""
    return torch.arange(csr.num_rows).repeat_interleave(csr.degrees())


register_reducer("logsumexp", LogSumExp)
