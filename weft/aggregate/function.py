"""An aggregation as autograd sees it: one function, whatever the reducer and the schedule."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.aggregate import schedules
from weft.aggregate.async_rows import AsyncRows, asynchronous, complete, split
from weft.aggregate.reducers import Reducer
from weft.aggregate.schedules import Aggregate
from weft.aggregate.topology import Edges
from weft.kernels.backends import backend_for

if TYPE_CHECKING:
    from weft.aggregate.driver import PassDriver


class AggregateFunction(torch.autograd.Function):
    """Any reducer under the driver's schedule; the adjoint goes back over the same routes."""

    @staticmethod
    def forward(
        ctx: Any, driver: "PassDriver", reducer: Reducer, edges: Edges, num_dst: int, *tensors: Tensor
    ) -> Tensor:
        deferred = driver.deferred(tensors)
        plain = [split(tensor)[0] for tensor in tensors]
        dst, src = tuple(plain[:num_dst]), tuple(tensor.contiguous() for tensor in plain[num_dst:])
        ctx.wire = driver.wire(reducer, edges)
        adds_to = tensors[0] if reducer.traits.linear and num_dst else None  # in place
        overlaps = (
            driver.overlaps
            and reducer.traits.by_rows
            and edges.num_rows == driver.num_out
            and backend_for(src[0]).by_rows
            and (adds_to is None or isinstance(adds_to, AsyncRows))
        )
        tape = driver.shared.tape
        if tape is not None and tape.replaying:
            done: Aggregate = tape.replay()
        else:
            final = driver.topology.final_rows if overlaps else None
            done = schedules.forward(driver.topology, ctx.wire, reducer, edges, dst, src, final, deferred)
            if tape is not None:
                done = done._replace(out=done.out.detach())
                tape.record(done)
        out = done.out
        if adds_to is None or driver.replaying:
            out = asynchronous(out, done.completion)
        else:
            ctx.mark_dirty(adds_to)
            out = adds_to
            if isinstance(out, AsyncRows) and done.completion is not None:
                out.completion = done.completion
        driver.shared.outstanding = ctx.completion = done.completion
        ctx.driver, ctx.reducer, ctx.edges, ctx.num_dst = driver, reducer, edges, num_dst
        ctx.widths = [tensor.shape[1] for tensor in src]
        if not reducer.traits.linear:
            ctx.counts = (len(dst), len(src), len(done.state))
            ctx.halo = done.halo  # rows of other workers, which may still be coming
            held = (done.out, *dst, *src, *done.state)
            # A replayed layer goes backward once, at once: its tensors can go one by one, before the others.
            ctx.held = list(held) if driver.replaying else None
            if ctx.held is None:
                ctx.save_for_backward(*held)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants_src = any(ctx.needs_input_grad[4 + ctx.num_dst :])
        if ctx.reducer.traits.linear and not wants_src:
            return (None, None, None, None, *[grad] * ctx.num_dst, *[None] * len(ctx.widths))
        grad = complete(grad).contiguous()
        if ctx.completion is not None:
            ctx.completion.wait()
        dst: tuple[Tensor, ...] = ()
        src: tuple[Tensor, ...] = ()
        halo: list[tuple[Tensor, ...]] = []
        state: Any = grad
        if not ctx.reducer.traits.linear:
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
            ctx.driver.topology, ctx.wire, ctx.reducer, ctx.edges, grad, state, halo, dst, src, ctx.widths, wants_src,
            ctx.driver.topology.schedule.overlap,
        )  # fmt: skip
        return (None, None, None, None, *d_dst[: ctx.num_dst], *(d_src if wants_src else [None] * len(d_src)))
