"""Dropout keyed by global ids, alone and fused with bias and activation, as autograd functions."""

from typing import Any

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.async_rows import RowSum, asynchronous, by_rows, complete, split
from weft.kernels import memory


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        ctx.ids, ctx.p, ctx.key = ids, p, key
        return kernels.dropout_rows(complete(x), ids, p, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.dropout_rows(complete(grad).contiguous(), ctx.ids, ctx.p, ctx.key), None, None, None


class EluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int) -> Tensor:
        x, completion = split(x)
        out = memory.empty_like(x)

        def activate(rows: slice) -> None:
            kernels.bias_elu_dropout(x[rows], bias, ids[rows], p, key, out.data[rows])

        by_rows(completion, x.shape[0], activate)
        ctx.save_for_backward(out)
        ctx.completion, ctx.ids, ctx.p, ctx.key, ctx.has_bias = completion, ids, p, key, bias is not None
        return asynchronous(out, completion)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        if ctx.completion is not None:
            ctx.completion.wait()
        grad = kernels.elu_dropout_backward(complete(grad).contiguous(), out, ctx.ids, ctx.p, ctx.key)
        return grad, grad.sum(0) if ctx.has_bias else None, None, None, None


class ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int) -> Tensor:
        plain, completion = split(x)

        def activate(rows: slice) -> None:
            kernels.bias_relu_dropout_(plain.data[rows], bias, ids[rows], p, key)

        by_rows(completion, x.shape[0], activate)
        ctx.mark_dirty(x)
        ctx.save_for_backward(plain)
        ctx.completion, ctx.p, ctx.has_bias = completion, p, bias is not None
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        if ctx.completion is not None:
            ctx.completion.wait()
        grad, completion = split(grad)
        if completion is None:
            grad = kernels.relu_dropout_backward(grad.contiguous(), out, ctx.p)
            return grad, grad.sum(0) if ctx.has_bias else None, None, None, None
        d_x, p = memory.empty_like(out), ctx.p
        d_bias = RowSum(out.new_zeros(out.shape[1])) if ctx.has_bias else None

        def differentiate(rows: slice) -> None:
            share = kernels.relu_dropout_backward(grad[rows], out[rows], p, into=d_x[rows])
            if d_bias is not None:
                d_bias.add(share.sum(0))

        completion.do(differentiate)
        sums = None if d_bias is None or d_bias.total is None else asynchronous(d_bias.total, completion)
        return asynchronous(d_x, completion), sums, None, None, None, None
