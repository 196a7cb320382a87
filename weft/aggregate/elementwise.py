"""Dropout keyed by global ids, alone and fused with bias and activation, as autograd functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.late import Late, done_early, was_early
from weft.kernels import memory


def _in_turn(coming: Late | None, work: Callable[[slice], object]) -> None:
    """Work on all rows, of a late tensor on those that are there; on the others when they are."""
    if coming is None:
        work(slice(None))
        return
    coming.work(work)


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        ctx.ids, ctx.p, ctx.key = ids, p, key
        return kernels.dropout_rows(x, ids, p, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.dropout_rows(grad.contiguous(), ctx.ids, ctx.p, ctx.key), None, None, None


class EluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int, coming: Late | None
    ) -> Tensor:
        out = memory.empty_like(x)
        _in_turn(coming, lambda rows: kernels.bias_elu_dropout(x[rows], bias, ids[rows], p, key, out.data[rows]))
        ctx.save_for_backward(out)
        ctx.ids, ctx.p, ctx.key, ctx.has_bias = ids, p, key, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        grad = kernels.elu_dropout_backward(grad.contiguous(), out, ctx.ids, ctx.p, ctx.key)
        return grad, grad.sum(0) if ctx.has_bias else None, None, None, None, None


class ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int, coming: Late | None
    ) -> Tensor:
        ctx.maker = x.grad_fn if hasattr(x.grad_fn, "early") else None  # x is overwritten, so nobody else reads it
        _in_turn(coming, lambda rows: kernels.bias_relu_dropout_(x.data[rows], bias, ids[rows], p, key))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.p, ctx.has_bias, ctx.d_bias = p, bias is not None, None
        ctx.early = ReluDropout.early
        return x

    @staticmethod
    def early(ctx: Any, grad: Tensor, rows: slice) -> None:
        (out,) = ctx.saved_tensors
        share = kernels.relu_dropout_backward(grad[rows], out[rows], ctx.p, into=grad[rows])
        if ctx.has_bias:
            ctx.d_bias = share.sum(0) if ctx.d_bias is None else ctx.d_bias.add_(share.sum(0))
        done_early(ctx.maker, grad, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        if was_early(ctx, grad):
            d_bias, ctx.d_bias = ctx.d_bias, None
            return grad, d_bias, None, None, None, None
        grad = kernels.relu_dropout_backward(grad.contiguous(), out, ctx.p)
        return grad, grad.sum(0) if ctx.has_bias else None, None, None, None, None
