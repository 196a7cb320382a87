"""Dense products shared by the layers: zeros that relu and dropout leave are skipped, sums happen inside products."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
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


def linear_many(x: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """Several products of the same rows; backward sums the gradients of x inside the products."""
    products: tuple[Tensor, ...] = _LinearMany.apply(x, *(m.to(x.dtype) for m in matrices))  # type: ignore[no-untyped-call]
    return products


def linear_sides(
    graph: GraphView, x: Tensor, own: Sequence[Tensor], everywhere: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Products of the rows that come out of a layer with the first matrices, of all rows with the others."""
    if graph.num_out == graph.num_rows:
        return linear_many(x, *own, *everywhere)
    return linear_many(graph.own(x), *own) + linear_many(x, *everywhere)


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


class _LinearMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *matrices)
        return tuple(product(x, matrix.t()) for matrix in matrices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        grads = tuple(grad.contiguous() for grad in grads)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = product(grads[0], matrices[0])
            for grad, matrix in zip(grads[1:], matrices[1:], strict=True):
                product(grad, matrix, out=d_x, accumulate=True)
        return d_x, *(reduce_product(grad, x) for grad in grads)
