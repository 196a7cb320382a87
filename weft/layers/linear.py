"""Dense products shared by the layers: zeros that relu and dropout leave are skipped, sums happen inside products."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.aggregate.late import Late, done_early, late, maker_of, mark, rows_in_turn, was_early
from weft.kernels import memory
from weft.kernels.products import product, reduce_product


def weight(num_out: int, num_in: int) -> nn.Parameter:
    """A Glorot-uniform matrix [out, in], as the originals of these layers use it."""
    bound = math.sqrt(6.0 / (num_in + num_out))
    return nn.Parameter(torch.empty(num_out, num_in).uniform_(-bound, bound))


def bias(width: int, wanted: bool = True) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(width)) if wanted else None


def linear(x: Tensor, matrix: Tensor, into: Tensor | None = None, only: bool = False) -> Tensor:
    """x [N, in] @ matrix [out, in]^T in the precision of x; with `into`, which nobody else reads, added there in place.

    `only`: nothing else in the layer reads x.
    """
    coming = late(x)
    makers = (maker_of(x) if only else None, None if into is None else into.grad_fn)
    out: Tensor = _Linear.apply(x, matrix.to(x.dtype), into, coming, makers)  # type: ignore[no-untyped-call]
    return mark(out, coming)


def linear_many(x: Tensor, *matrices: Tensor, only: bool = False) -> tuple[Tensor, ...]:
    """Several products of the same rows; backward sums the gradients of x inside the products."""
    coming, cast = late(x), [matrix.to(x.dtype) for matrix in matrices]
    maker = maker_of(x) if only else None
    products: tuple[Tensor, ...] = _LinearMany.apply(x, coming, maker, *cast)  # type: ignore[no-untyped-call]
    return tuple(mark(rows, coming) for rows in products)


def linear_sides(
    graph: GraphView, x: Tensor, own: Sequence[Tensor], everywhere: Sequence[Tensor], only: bool = False
) -> tuple[Tensor, ...]:
    """Products of the rows that come out of a layer with the first matrices, of all rows with the others."""
    if graph.num_out == graph.num_rows:
        return linear_many(x, *own, *everywhere, only=only)
    return linear_many(graph.own(x), *own) + linear_many(x, *everywhere)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, into: Tensor | None, coming: Late | None, makers: tuple[Any, Any]
    ) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.early, ctx.sums = _Linear.early, _Sums()
        ctx.maker, beside = makers
        # What is added to gets the same gradient: if it is a product too, nothing is written there.
        ctx.beside = beside if getattr(beside, "early", None) is _Linear.early else None
        if into is None:
            return _product(x, matrix.t(), coming)
        ctx.mark_dirty(into)
        return _product(x, matrix.t(), coming, into)

    @staticmethod
    def early(ctx: Any, grad: Tensor, rows: slice) -> None:
        x, matrix = ctx.saved_tensors
        wants_x, wants_matrix, *_ = ctx.needs_input_grad
        ctx.sums.add(grad, rows, x, matrix, wants_x, wants_matrix)
        done_early(ctx.maker, ctx.sums.d_x, rows)
        done_early(ctx.beside, grad, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        if not was_early(ctx, grad):
            for rows in rows_in_turn(grad):
                _Linear.early(ctx, grad, rows)
        sums, ctx.sums = ctx.sums, _Sums()
        return sums.d_x, sums.d_matrix, grad if ctx.needs_input_grad[2] else None, None, None


class _LinearMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coming: Late | None, maker: Any, *matrices: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *matrices)
        ctx.maker = maker
        return tuple(_product(x, matrix.t(), coming) for matrix in matrices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        wants_x, d_x = ctx.needs_input_grad[0], None
        d_matrices: list[Tensor | None] = []
        for grad, matrix in zip(grads, matrices, strict=True):
            sums, grad = _Sums(d_x), grad.contiguous()
            for rows in rows_in_turn(grad):
                sums.add(grad, rows, x, matrix, wants_x, True)
                if len(d_matrices) + 1 == len(matrices):
                    done_early(ctx.maker, sums.d_x, rows)
            d_x = sums.d_x
            d_matrices.append(sums.d_matrix)
        return d_x, None, None, *d_matrices


class _Sums:
    """Gradients of a product, as its rows are walked."""

    def __init__(self, d_x: Tensor | None = None) -> None:
        """Where `d_x` is given, it is added to."""
        self.d_x, self._accumulate = d_x, d_x is not None
        self.d_matrix: Tensor | None = None

    def add(self, grad: Tensor, rows: slice, x: Tensor, matrix: Tensor, wants_x: bool, wants_matrix: bool) -> None:
        if wants_x:
            if self.d_x is None:
                self.d_x = memory.empty_like(x)
            product(grad[rows], matrix, out=self.d_x[rows], accumulate=self._accumulate)
        if wants_matrix:
            share = reduce_product(grad[rows], x[rows])
            self.d_matrix = share if self.d_matrix is None else self.d_matrix.add_(share)


def _product(x: Tensor, matrix: Tensor, coming: Late | None, into: Tensor | None = None) -> Tensor:
    """x @ matrix, added to `into` where that is given; of a late x, the rows that are there, and the others later."""
    if coming is None:
        return product(x, matrix, out=into, accumulate=into is not None)
    out = memory.empty((x.shape[0], matrix.shape[1]), x.dtype, x.device) if into is None else into
    coming.work(lambda rows: product(x[rows], matrix, out=out.data[rows], accumulate=into is not None))
    return out
