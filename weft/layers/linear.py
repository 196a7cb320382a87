"""Dense products shared by the layers, without passes over memory that a matrix product can do itself."""

import math
from typing import Any

import torch
from torch import Tensor, nn


def weight(num_out: int, num_in: int) -> nn.Parameter:
    """A Glorot-uniform matrix [out, in], as the originals of these layers use it."""
    bound = math.sqrt(6.0 / (num_in + num_out))
    return nn.Parameter(torch.empty(num_out, num_in).uniform_(-bound, bound))


def bias(width: int, wanted: bool = True) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(width)) if wanted else None


def linear(x: Tensor, matrix: Tensor) -> Tensor:
    """x [N, in] @ matrix [out, in]^T, computed in the precision of x."""
    return x @ matrix.to(x.dtype).t()


def linear_pair(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two products of the same rows; backward sums both gradients of x inside the second product."""
    pair: tuple[Tensor, Tensor] = _LinearPair.apply(x, first.to(x.dtype), second.to(x.dtype))  # type: ignore[no-untyped-call]
    return pair


class _LinearPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, first, second)
        return x @ first.t(), x @ second.t()

    @staticmethod
    def backward(ctx: Any, d_first: Tensor, d_second: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second = ctx.saved_tensors
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = d_first @ first
            d_x.addmm_(d_second, second)
        return d_x, d_first.t() @ x, d_second.t() @ x
