"""Dense products shared by the layers: zeros that relu and dropout leave are skipped, sums happen inside products."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.aggregate.late import Late, late, mark, rows_in_turn
from weft.kernels import memory
from weft.kernels.products import product, reduce_product


def weight(num_out: int, num_in: int) -> nn.Parameter:
    """A Glorot-uniform matrix [out, in], as the originals of these layers use it."""
    bound = math.sqrt(6.0 / (num_in + num_out))
    return nn.Parameter(torch.empty(num_out, num_in).uniform_(-bound, bound))


def bias(width: int, wanted: bool = True) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(width)) if wanted else None


def linear(x: Tensor, matrix: Tensor, into: Tensor | None = None) -> Tensor:
    """x [N, in] @ matrix [out, in]^T in the precision of x; with `into`, added there in place."""
    coming = late(x)
    out: Tensor = _Linear.apply(x, matrix.to(x.dtype), into, coming)  # type: ignore[no-untyped-call]
    return mark(out, coming)


def linear_many(x: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """Several products of the same rows; backward sums the gradients of x inside the products."""
    coming, cast = late(x), [matrix.to(x.dtype) for matrix in matrices]
    products: tuple[Tensor, ...] = _LinearMany.apply(x, coming, *cast)  # type: ignore[no-untyped-call]
    return tuple(mark(rows, coming) for rows in products)


def linear_sides(
    graph: GraphView, x: Tensor, own: Sequence[Tensor], everywhere: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Products of the rows that come out of a layer with the first matrices, of all rows with the others."""
    if graph.num_out == graph.num_rows:
        return linear_many(x, *own, *everywhere)
    return linear_many(graph.own(x), *own) + linear_many(x, *everywhere)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, into: Tensor | None, coming: Late | None) -> Tensor:
        ctx.save_for_backward(x, matrix)
        if into is None:
            return _product(x, matrix.t(), coming)
        ctx.mark_dirty(into)
        return _product(x, matrix.t(), coming, into)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        wants_x, wants_matrix, wants_into, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        d_x = memory.empty_like(x) if wants_x else None
        d_matrix = _backward(grad, x, matrix, d_x, wants_matrix)
        return d_x, d_matrix, grad if wants_into else None, None


class _LinearMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coming: Late | None, *matrices: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *matrices)
        return tuple(_product(x, matrix.t(), coming) for matrix in matrices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        d_x = memory.empty_like(x) if ctx.needs_input_grad[0] else None
        d_matrices = [
            _backward(grad.contiguous(), x, matrix, d_x, True, accumulate=number > 0)
            for number, (grad, matrix) in enumerate(zip(grads, matrices, strict=True))
        ]
        return d_x, None, *d_matrices


def _product(x: Tensor, matrix: Tensor, coming: Late | None, into: Tensor | None = None) -> Tensor:
    """x @ matrix, added to `into` where that is given; of a late x, the rows that are there, and the others later."""
    if coming is None:
        return product(x, matrix, out=into, accumulate=into is not None)
    out = memory.empty((x.shape[0], matrix.shape[1]), x.dtype, x.device) if into is None else into
    coming.work(lambda rows: product(x[rows], matrix, out=out.data[rows], accumulate=into is not None))
    return out


def _backward(
    grad: Tensor, x: Tensor, matrix: Tensor, d_x: Tensor | None, wants_matrix: bool, accumulate: bool = False
) -> Tensor | None:
    """Writes (or adds) the gradient of the rows to `d_x` and returns that of the matrix; rows that come late, last."""
    d_matrix: Tensor | None = None
    for rows in rows_in_turn(grad):
        if d_x is not None:
            product(grad[rows], matrix, out=d_x[rows], accumulate=accumulate)
        if wants_matrix:
            share = reduce_product(grad[rows], x[rows])
            d_matrix = share if d_matrix is None else d_matrix.add_(share)
    return d_matrix
