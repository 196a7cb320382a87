"""Normalisation over the vertices of the whole graph, whichever worker owns them."""

from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView


class BatchNorm(nn.Module):
    """Batch normalisation with the statistics of all workers' rows: mean first, then centred squares."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        x, dtype = (x.float() if x.dtype == torch.bfloat16 else x), x.dtype
        if not self.training:
            mean, variance, count = self.running_mean.to(x.dtype), self.running_var.to(x.dtype), 0
        else:
            count = graph.total_rows(x.shape[0])
            mean = _total(x.sum(0), graph) / count
            variance = _total(((x - mean) ** 2).sum(0), graph) / count
            if not graph.replaying:
                self._remember(mean.detach(), variance.detach(), count)
        out = (x - mean) * (variance + self.eps).rsqrt() * self.gain + self.shift
        return out.to(dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


class LayerNorm(nn.LayerNorm):
    """Each row by itself, so nothing crosses workers; takes the graph to be called like BatchNorm."""

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:  # type: ignore[override]
        weight, shift = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return nn.functional.layer_norm(x, self.normalized_shape, weight, shift, self.eps)


def _total(x: Tensor, graph: GraphView) -> Tensor:
    """The sum of x over all workers, differentiable: each worker's gradient is the sum of all workers' gradients."""
    if graph.comm.num_workers == 1:
        return x
    total: Tensor = _AllReduce.apply(x, graph)  # type: ignore[no-untyped-call]
    return total


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: GraphView) -> Tensor:
        ctx.comm = graph.comm

        def reduce() -> Tensor:
            return graph.comm.all_reduce(x.clone(), "hidden_forward", "batch statistics")

        total: Tensor = graph.once(reduce)
        return total.clone() if graph.replaying else total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        ctx.comm.all_reduce(total, "hidden_backward", "batch statistics")
        return total, None
