"""The exchange of rows along a route. It is differentiable: its gradient is the exchange along the transposed route."""

from typing import Any

import torch
from torch import Tensor

from weft.comm.codec import Codec, place, raw, take
from weft.comm.communicator import Communicator
from weft.comm.pending import PendingMessages
from weft.comm.route import Route, Rows, num_rows
from weft.kernels import memory


class PendingExchange:
    """An exchange that has been started; `finish` returns its rows."""

    def __init__(self, comm: Communicator, route: Route, codec: Codec, out: Tensor, overwrite: bool) -> None:
        self._comm = comm
        self._route = route
        self._codec = codec
        self._out = out
        self._overwrite = overwrite  # arriving rows replace rows of `out`; otherwise they are added
        self._messages: dict[int, Tensor] = {}  # peer -> uint8 message still to be decoded
        self._own: tuple[Tensor, Rows] | None = None
        self._pending: PendingMessages | None = None

    def finish(self) -> Tensor:
        """Waits for the peers in their order, so that sums are the same in every run; [num_out, D]."""
        assert self._pending is not None, "an exchange finishes once"
        for peer in range(self._comm.num_workers):
            self._pending.wait_for(peer)
            if peer == self._comm.worker and self._own is not None:
                values, rows = self._own
                place(values, self._out, rows, add=not self._overwrite)
            elif peer in self._messages:
                message, rows = self._messages.pop(peer), self._route.recv_rows[peer]
                self._codec.decode(peer, message, self._out, rows, add=not self._overwrite)
        self._pending.wait()
        self._pending, self._own = None, None
        return self._out

    def messages(self) -> dict[int, Tensor]:
        """Encoded messages by peer, once they have arrived; whoever keeps one can decode it again."""
        return dict(self._messages)


def start_exchange(
    comm: Communicator,
    route: Route,
    x: Tensor,
    codec: Codec,
    kind: str,
    what: str,
    out: Tensor | None = None,
) -> PendingExchange:
    """Sends rows of x [num_in, D] along the route and returns at once; no gradient.

    Without `out` the result is a new [num_out, D]; with it the rows are added into it. x may be written to again,
    and `out` read, after `finish`.
    """
    x = x.detach()
    assert x.dim() == 2 and x.shape[0] == route.num_in, f"x is {tuple(x.shape)}, the route takes {route.num_in} rows"
    columns, dtype = x.shape[1], x.dtype
    # Fresh rows that no two peers share are written, not added: with raw they arrive in the result itself.
    overwrite = out is None and not route.overlaps
    if out is None:
        out = memory.empty((route.num_out, columns), dtype, x.device)
        if not route.tiles:
            out.zero_()
    assert out.shape == (route.num_out, columns) and out.dtype == dtype
    pending = PendingExchange(comm, route, codec, out, overwrite)

    outgoing: list[Tensor | None] = [None] * comm.num_workers
    incoming: list[Tensor | None] = [None] * comm.num_workers
    for peer in range(comm.num_workers):
        if peer == comm.worker:
            if num_rows(route.send_rows[peer]):
                pending._own = (take(x, route.send_rows[peer]), route.recv_rows[peer])
            continue
        rows = route.recv_rows[peer]
        if num_rows(rows) and columns:
            if codec.verbatim and overwrite and isinstance(rows, slice):
                incoming[peer] = out[rows]  # a slice of whole rows of a contiguous tensor is contiguous
            else:
                size = codec.arriving_bytes(peer, num_rows(rows), columns, dtype)
                pending._messages[peer] = incoming[peer] = memory.empty((size,), torch.uint8, x.device)
        if num_rows(route.send_rows[peer]) and columns:
            message = codec.encode(peer, x, route.send_rows[peer])
            size = codec.leaving_bytes(peer, num_rows(route.send_rows[peer]), columns, dtype)
            assert message.numel() * message.element_size() == size
            outgoing[peer] = message
    pending._pending = comm.post(outgoing, incoming, kind, what)
    return pending


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, route: Route, comm: Communicator, codec: Codec, kinds: tuple[str, str], what: str
    ) -> Tensor:
        ctx.transposed = (comm, route.transpose(), codec, kinds[1], f"gradient of {what}")
        return start_exchange(comm, route, x, codec, kinds[0], what).finish()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        comm, route, codec, kind, what = ctx.transposed
        grad = start_exchange(comm, route, grads[0].contiguous(), codec, kind, what).finish()
        return grad, None, None, None, None, None


def exchange(
    x: Tensor,
    route: Route,
    comm: Communicator,
    codec: Codec = raw,
    what: str = "rows",
    kinds: tuple[str, str] = ("hidden_forward", "hidden_backward"),
) -> Tensor:
    """Rows of x [num_in, D] along the route: y [num_out, D], differentiable.

    Every worker calls it, with rows or without, and every worker's result takes part in its loss (or in none):
    the backward pass is an exchange too. `kinds` are the byte classes of the two directions.
    """
    y: Tensor = _Exchange.apply(x, route, comm, codec, kinds, what)  # type: ignore[no-untyped-call]
    return y
