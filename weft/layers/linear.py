"""Dense products shared by the layers: zeros that relu and dropout leave are skipped, sums happen inside products."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.aggregate import GraphView, Nonzeros
from weft.aggregate.async_rows import AsyncRows, Completion, RowSum, asynchronous, by_rows, complete, split
from weft.kernels import memory
from weft.kernels.products import product, reduce_product


def linear(x: Tensor, matrix: Tensor, into: Tensor | None = None, nonzeros: Nonzeros | None = None) -> Tensor:
    """x [N, in] @ matrix [out, in]^T in the precision of x.

    With `into` the product is added there. Its memory becomes the result's: use what is returned, not `into`.
    `nonzeros`: those of x, if they are known.
    """
    out: Tensor = _Linear.apply(x, matrix.to(x.dtype), into, nonzeros)  # type: ignore[no-untyped-call]
    return out


def linear_of(graph: GraphView, x: Tensor, matrix: Tensor, into: Tensor | None = None) -> Tensor:
    """The same of rows of which the graph may know that they never change: their zeros are looked for once."""
    return linear(x, matrix, into, graph.nonzeros(x))


def linear_many(x: Tensor, *matrices: Tensor, growing: bool = False) -> tuple[Tensor, ...]:
    """Several products of the same rows; backward sums the gradients of x inside the products.

    `growing`: the products are asynchronous tensors in any case, so that an aggregation that adds to one in place may
    return before all of its rows have arrived.
    """
    cast = [matrix.to(x.dtype) for matrix in matrices]
    products: tuple[Tensor, ...] = _LinearMany.apply(x, growing, *cast)  # type: ignore[no-untyped-call]
    return products


def linear_sides(
    graph: GraphView, x: Tensor, own: Sequence[Tensor], everywhere: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Products of the rows that come out of a layer with the first matrices, of all rows with the others."""
    if graph.num_out == graph.num_rows:
        return linear_many(x, *own, *everywhere, growing=graph.driver.overlaps)
    return linear_many(graph.own(x), *own) + linear_many(x, *everywhere)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, into: Tensor | None, nonzeros: Nonzeros | None) -> Tensor:
        x, completion = split(x)
        ctx.save_for_backward(x, matrix)
        ctx.completion, ctx.nonzeros = completion, nonzeros
        if completion is None:
            lists = None if nonzeros is None else nonzeros.by_row
            if into is None:
                return product(x, matrix.t(), lists=lists)
            ctx.mark_dirty(into)
            product(x, matrix.t(), out=complete(into), accumulate=True, lists=lists)
            return into
        if into is None:
            return _product(x, matrix, completion)
        # What is written later cannot be written to `into` itself, which would not wait for it.
        torch.autograd.graph.increment_version(into)
        return _product(x, matrix, completion, complete(into).detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        if ctx.completion is not None:
            ctx.completion.wait()
        wants_x, wants_matrix, wants_into, _ = ctx.needs_input_grad
        rows, completion = split(grad)
        back = _Gradients(completion, x, wants_x, ctx.nonzeros)
        d_matrix = back.add(rows.contiguous(), completion, matrix, wants_matrix)
        return back.d_x(), d_matrix, grad if wants_into else None, None


class _LinearMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, growing: bool, *matrices: Tensor) -> tuple[Tensor, ...]:
        x, completion = split(x)
        ctx.save_for_backward(x, *matrices)
        ctx.completion = completion
        products = tuple(_product(x, matrix, completion) for matrix in matrices)
        return tuple(AsyncRows(rows, Completion()) for rows in products) if growing and not completion else products

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        if ctx.completion is not None:
            ctx.completion.wait()
        _, last = split(grads[-1])
        back = _Gradients(last, x, ctx.needs_input_grad[0])
        d_matrices = []
        for grad, matrix in zip(grads, matrices, strict=True):
            rows, completion = split(grad)
            d_matrices.append(back.add(rows.contiguous(), completion, matrix, True))
            if completion is not None and completion is not last:
                completion.wait()
        return back.d_x(), None, *d_matrices


class _Gradients:
    """Gradients of products of the same rows, of one matrix after another."""

    def __init__(
        self, completion: Completion | None, x: Tensor, wants_x: bool, nonzeros: Nonzeros | None = None
    ) -> None:
        """`completion`: of the last product's gradient, after which nothing more is added. `nonzeros`: those of x."""
        self._completion, self._x, self._nonzeros = completion, x, nonzeros
        self._d_x = memory.empty_like(x) if wants_x else None
        self._accumulate = False

    def d_x(self) -> Tensor | None:
        return None if self._d_x is None else asynchronous(self._d_x, self._completion)

    def add(self, grad: Tensor, completion: Completion | None, matrix: Tensor, wants_matrix: bool) -> Tensor | None:
        """Adds a product's share to the gradient of x; returns the matrix' gradient, if that is wanted."""
        x, d_x, accumulate = self._x, self._d_x, self._accumulate
        d_matrix = RowSum(None if completion is None else matrix.new_zeros(matrix.shape))
        at_once = wants_matrix and completion is None and self._nonzeros is not None
        lists = self._nonzeros.by_column if at_once and self._nonzeros is not None else None

        def differentiate(rows: slice) -> None:
            if d_x is not None:
                product(grad[rows], matrix, out=d_x[rows], accumulate=accumulate)
            if wants_matrix:
                d_matrix.add(reduce_product(grad[rows], x[rows], lists))

        by_rows(completion, x.shape[0], differentiate)
        self._accumulate = True
        if not wants_matrix or d_matrix.total is None:
            return None
        return asynchronous(d_matrix.total, completion)


def _product(x: Tensor, matrix: Tensor, completion: Completion | None, into: Tensor | None = None) -> Tensor:
    """x @ matrix^T, added to `into` where that is given; where rows of x are pending, theirs follow."""
    matrix, accumulate = matrix.t(), into is not None
    if completion is None:
        return product(x, matrix, out=into, accumulate=accumulate)
    out = memory.empty((x.shape[0], matrix.shape[1]), x.dtype, x.device) if into is None else into
    completion.do(lambda rows: product(x[rows], matrix, out=out.data[rows], accumulate=accumulate))
    return AsyncRows(out, completion)
