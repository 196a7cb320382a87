"""Schedules: in which order a worker's edge blocks are exchanged and absorbed.

`materialised` exchanges the whole halo, then absorbs it at once: the plain baseline that every other schedule must
equal. Own rows are absorbed while the halo is under way; the result does not depend on when it arrives.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.reducers import Reducer, Tensors
from weft.kernels import memory

if TYPE_CHECKING:
    from weft.aggregate.view import GraphView


@dataclass(frozen=True)
class Edges:
    """One aggregation's edges: those from own rows and those from the halo, with their coefficients."""

    local: Block
    remote: Block


def forward(
    view: "GraphView", reducer: Reducer, edges: Edges, dst: Tensors, src: Tensors
) -> tuple[Tensor, Tensors, Tensors]:
    """The aggregate, what the reducer keeps, and the halo rows where the backward pass reads them."""
    flights = [view.start_halo(tensor) for tensor in src]
    state = reducer.start(dst, src, edges.local.csr.num_rows)
    reducer.absorb(state, edges.local, view.local_sides, dst, src)
    halo = tuple(flight.finish() for flight in flights)
    if halo and view.num_halo:
        reducer.absorb(state, edges.remote, view.remote_sides, dst, halo)
    out, kept = reducer.finish(state)
    return out, kept, halo if reducer.reads_sources else ()


def backward(
    view: "GraphView",
    reducer: Reducer,
    edges: Edges,
    grad: Tensor,
    out: Tensor,
    kept: Tensors,
    dst: Tensors,
    src: Tensors,
    halo: Tensors,
    widths: list[int],
) -> tuple[Tensors, Tensors]:
    """Gradients of `dst` and `src`. `widths`: columns of each source tensor."""
    state: Any = reducer.begin_backward(grad, out, kept, dst)
    d_src = tuple(memory.empty((view.num_rows, width), grad.dtype, grad.device) for width in widths)
    flights = []
    if view.exchanges:
        d_halo = tuple(memory.empty((view.num_halo, width), grad.dtype, grad.device) for width in widths)
        reducer.backward_block(state, edges.remote, view.remote_sides, dst, halo, d_halo)
        flights = [view.start_home(rows, into) for rows, into in zip(d_halo, d_src, strict=True)]
    reducer.backward_block(state, edges.local, view.local_sides, dst, src, d_src)
    for flight in flights:
        flight.finish()
    return reducer.finish_backward(state), d_src
