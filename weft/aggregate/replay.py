"""Layers computed again in the backward pass instead of kept: their dense part, not their aggregations.

In the forward pass a segment of the model runs without a graph, and only its input and the results of its
aggregations are kept. In the backward pass it runs again with one; each aggregation then hands out what it gave
before, so nothing is exchanged twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

if TYPE_CHECKING:
    from weft.aggregate.driver import PassDriver


class Tape:
    """Results in the order in which they were made; first recorded, then handed out again."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self.replaying = False

    def record(self, result: Any) -> None:
        self._results.append(result)

    def replay(self) -> Any:
        """The next result, which is forgotten."""
        return self._results.pop(0)


Segment = Callable[[Tensor], Tensor]


def rematerialised(driver: PassDriver, segment: Segment, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """segment(x), of which nothing is kept but x and its aggregates. `parameters`: all that it uses besides x."""
    out: Tensor = _Segment.apply(driver, segment, x, *parameters)  # type: ignore[no-untyped-call]
    return out


class _Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, driver: PassDriver, segment: Segment, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.driver, ctx.segment, ctx.tape = driver, segment, Tape()
        ctx.place = driver.shared.noise.place
        ctx.constant = None if ctx.needs_input_grad[2] else x  # known to the driver as this very tensor
        ctx.save_for_backward(x, *parameters)
        with driver.taped(ctx.tape):
            return segment(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        wants_x = ctx.needs_input_grad[2]
        own = x.detach().requires_grad_() if wants_x else ctx.constant
        ctx.tape.replaying = True
        noise = ctx.driver.shared.noise
        before, noise.place = noise.place, ctx.place
        with torch.enable_grad(), ctx.driver.taped(ctx.tape):
            out = ctx.segment(own)
        noise.place = before
        end = get_gradient_edge(out)  # the way back needs no values of what came out: they may go
        del out
        wanted = [own] if wants_x else []
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = list(torch.autograd.grad(end, [*wanted, *trained], grad, allow_unused=True))
        d_x = gradients.pop(0) if wants_x else None
        left = iter(gradients)
        return None, None, d_x, *(next(left) if parameter.requires_grad else None for parameter in parameters)
