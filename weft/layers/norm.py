"""Normalisation over the vertices of the whole graph, or of a minibatch, whichever workers compute them."""

from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.layers.separation import OpBuilder


class BatchNorm(nn.Module):
    """Batch normalisation with the statistics of all vertices, each once: mean first, then centred squares."""

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
            rows = _counted(x, graph)
            count = _total_rows(rows.shape[0], graph)
            mean = _total(rows.sum(0), graph) / max(count, 1)
            variance = _total(((rows - mean) ** 2).sum(0), graph) / max(count, 1)
            if count and not graph.driver.replaying:
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

    def vertex_ops(self, ops: OpBuilder, x: str) -> str:
        return ops.add("layer_norm", x, weights=["weight", "bias"], settings={"eps": self.eps})


def _counted(x: Tensor, graph: GraphView) -> Tensor:
    """The rows of x that count in statistics of all workers' rows: each vertex counts on one worker."""
    which = graph.driver.topology.counted
    if which is None:
        return x
    assert x.shape[0] <= which.numel(), "it is not known where these rows count"
    return x[which[: x.shape[0]]]


def _total_rows(rows: int, graph: GraphView) -> int:
    """How many rows a layer has on all workers together, where it has so many here."""
    if not graph.of_minibatch:
        return graph.shard.num_global_nodes
    count = torch.tensor([rows])

    def total() -> int:
        return int(graph.comm.all_reduce(count, "control", "rows of all workers"))

    return int(graph.driver.once(total))


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

        total: Tensor = graph.driver.once(reduce)
        return total.clone() if graph.driver.replaying else total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        ctx.comm.all_reduce(total, "hidden_backward", "batch statistics")
        return total, None
