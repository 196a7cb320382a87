"""Dense products shared by the layers: zeros that relu and dropout leave are skipped, sums happen inside products."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from weft.kernels.products import product, reduce_product


def weight(num_out: int, num_in: int) -> nn.Parameter:
    """A Glorot-uniform matrix [out, in], as the originals of these layers use it."""
    bound = math.sqrt(6.0 / (num_in + num_out))
    return nn.Parameter(torch.empty(num_out, num_in).uniform_(-bound, bound))


def bias(width: int, wanted: bool = True) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(width)) if wanted else None


def linear(x: Tensor, matrix: Tensor, into: Tensor | None = None) -> Tensor:
    """x [N, in] @ matrix [out, in]^T in the precision of x; with `into`, added there in place."""
    out: Tensor = _Linear.apply(x, matrix.to(x.dtype), into)  # type: ignore[no-untyped-call]
    return out


def linear_pair(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two products of the same rows; backward sums both gradients of x inside the second product."""
    pair: tuple[Tensor, Tensor] = _LinearPair.apply(x, first.to(x.dtype), second.to(x.dtype))  # type: ignore[no-untyped-call]
    return pair


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, into: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, matrix)
        if into is None:
            return product(x, matrix.t())
        ctx.mark_dirty(into)
        return product(x, matrix.t(), out=into, accumulate=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        wants_x, wants_matrix, wants_into = ctx.needs_input_grad
        grad = grad.contiguous()
        d_x = product(grad, matrix) if wants_x else None
        d_matrix = reduce_product(grad, x) if wants_matrix else None
        return d_x, d_matrix, grad if wants_into else None


class _LinearPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, first, second)
        return product(x, first.t()), product(x, second.t())

    @staticmethod
    def backward(ctx: Any, d_first: Tensor, d_second: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second = ctx.saved_tensors
        d_first, d_second = d_first.contiguous(), d_second.contiguous()
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = product(d_first, first)
            product(d_second, second, out=d_x, accumulate=True)
        return d_x, reduce_product(d_first, x), reduce_product(d_second, x)
