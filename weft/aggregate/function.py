"""An aggregation as autograd sees it: one function, whatever the reducer and the schedule."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.aggregate import schedules
from weft.aggregate.late import is_alone
from weft.aggregate.reducers import Reducer, Sum
from weft.aggregate.schedules import Aggregate
from weft.aggregate.topology import Edges
from weft.kernels.native import native_for

if TYPE_CHECKING:
    from weft.aggregate.view import GraphView


class AggregateFunction(torch.autograd.Function):
    """Any reducer under the view's schedule; the adjoint goes back over the same routes."""

    @staticmethod
    def forward(ctx: Any, view: "GraphView", reducer: Reducer, edges: Edges, num_dst: int, *tensors: Tensor) -> Tensor:
        dst, src = tensors[:num_dst], tuple(tensor.contiguous() for tensor in tensors[num_dst:])
        ctx.wire = view._wire(reducer, edges)

        def aggregate() -> Aggregate:
            final = view.topology.final_rows if view._pass.may_be_late and native_for(src[0]) else None
            done = schedules.forward(view.topology, ctx.wire, reducer, edges, dst, src, final, view._pass.put_off)
            return done if view._pass.tape is None else done._replace(out=done.out.detach())

        done: Aggregate = view.once(aggregate)
        view._pass.arriving = done.late
        ctx.may_be_late = view.topology.schedule.overlap and all(is_alone(tensor) for tensor in tensors[num_dst:])
        in_place = isinstance(reducer, Sum) and bool(dst)
        if in_place and not view.replaying:
            ctx.mark_dirty(dst[0])
            done = done._replace(out=dst[0])
        ctx.view, ctx.reducer, ctx.edges, ctx.num_dst = view, reducer, edges, num_dst
        ctx.widths = [tensor.shape[1] for tensor in src]
        if not isinstance(reducer, Sum):
            ctx.counts = (len(dst), len(src), len(done.state))
            ctx.halo = done.halo  # rows of other workers, which may still be coming
            held = (done.out, *dst, *src, *done.state)
            # A replayed layer goes backward once, at once: its tensors can go one by one, before the others.
            ctx.held = list(held) if view.replaying else None
            if ctx.held is None:
                ctx.save_for_backward(*held)
        return done.out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        wants_src = any(ctx.needs_input_grad[4 + ctx.num_dst :])
        if isinstance(ctx.reducer, Sum) and not wants_src:
            return (None, None, None, None, *[grad] * ctx.num_dst, *[None] * len(ctx.widths))
        dst: tuple[Tensor, ...] = ()
        src: tuple[Tensor, ...] = ()
        halo: list[tuple[Tensor, ...]] = []
        state: Any = grad
        if not isinstance(ctx.reducer, Sum):
            held = list(ctx.saved_tensors) if ctx.held is None else ctx.held

            def take(count: int) -> tuple[Tensor, ...]:
                return tuple(held.pop(0) for _ in range(count))

            num_dst, num_src, num_state = ctx.counts
            out = take(1)
            dst, src, kept = take(num_dst), take(num_src), take(num_state)
            halo, ctx.halo = ctx.halo, []
            state = ctx.reducer.begin_backward(grad, out[0], kept, dst)
            del out
        d_dst, d_src = schedules.backward(
            ctx.view.topology, ctx.wire, ctx.reducer, ctx.edges, grad, state, halo, dst, src, ctx.widths, wants_src,
            ctx.may_be_late,
        )  # fmt: skip
        return (None, None, None, None, *d_dst[: ctx.num_dst], *(d_src if wants_src else [None] * len(d_src)))
