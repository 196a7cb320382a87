"""Forward and backward of any reducer under any schedule: rounds started ahead, absorbed in turn, and freed.

Every worker walks the same rounds in the same order, so each send finds its receive; nobody waits for a barrier, and
nobody is further ahead of its peers than the rounds in flight.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.aggregate.reducers import Reducer, Sides, Tensors
from weft.aggregate.topology import Edges, Round, Topology
from weft.comm import Codec, InFlight, start_exchange
from weft.kernels import memory


class Wire(NamedTuple):
    """How rows travel: their form, and the class under which forward bytes are counted."""

    codec: Codec
    kind: str = "hidden_forward"


class Aggregate(NamedTuple):
    out: Tensor
    state: Tensors  # what the reducer keeps for its backward pass
    halo: tuple[Tensors, ...]  # of each round, what the schedule keeps; empty: nothing


def forward(topology: Topology, wire: Wire, reducer: Reducer, edges: Edges, dst: Tensors, src: Tensors) -> Aggregate:
    schedule = topology.schedule
    keeps = reducer.reads_sources and schedule.keep != "nothing"
    fetched = _Fetcher(topology, wire, src, keep_packed=keeps and schedule.keep == "packed")
    fetched.start(schedule.prefetch)
    state = reducer.start(dst, src, edges.num_rows)
    for block, span in zip(edges.own, topology.spans, strict=True):
        reducer.absorb(state, block, _sides(topology, topology.ids[span]), dst, _cut(src, span))
    kept: list[Tensors] = []
    for block, round in zip(edges.rounds, topology.rounds, strict=True):
        rows = fetched.next()
        if round.num_rows:
            reducer.absorb(state, block, _sides(topology, round.ids), dst, rows)
        if keeps and rows:
            kept.append(fetched.packed if schedule.keep == "packed" else rows)
        del rows  # before the next round is waited for
    out, remembered = reducer.finish(state)
    return Aggregate(out, remembered, tuple(kept))


def backward(
    topology: Topology,
    wire: Wire,
    reducer: Reducer,
    edges: Edges,
    grad: Tensor,
    state: Any,
    halo: tuple[Tensors, ...],
    dst: Tensors,
    src: Tensors,
    widths: Sequence[int],
    sends_home: bool = True,
) -> tuple[tuple[Tensor | None, ...], Tensors]:
    """Gradients of `dst` and `src`.

    `state` is the reducer's, its backward pass begun; `halo` what was kept of each round; `widths` the columns of each
    source tensor; `sends_home`: source rows want gradients.
    """
    schedule = topology.schedule
    d_src = tuple(memory.empty((topology.num_in, width), grad.dtype, grad.device) for width in widths)
    refetches = reducer.reads_sources and bool(src) and not halo
    fetched = _Fetcher(topology, wire, src if refetches else ())
    fetched.start(schedule.prefetch)
    homeward: deque[list[InFlight]] = deque()

    def own_rows() -> None:
        for block, span in zip(edges.own, topology.spans, strict=True):
            reducer.backward_block(
                state, block, _sides(topology, topology.ids[span]), dst, _cut(src, span), _cut(d_src, span)
            )

    # Own rows fill the time in which something travels: the first rows to come, or the first gradients on their way
    # home. The latter are added to what own rows have written, so they are not taken in before.
    own_done = refetches or not topology.rounds
    if own_done:
        own_rows()
    for number, (block, round) in enumerate(zip(edges.rounds, topology.rounds, strict=True)):
        rows = fetched.next() if refetches else _kept(topology, wire, halo, number, src)
        d_rows = tuple(memory.empty((round.num_rows, width), grad.dtype, grad.device) for width in widths)
        if round.num_rows:
            reducer.backward_block(state, block, _sides(topology, round.ids), dst, rows, d_rows)
        del rows
        if sends_home:
            homeward.append([_start_home(topology, wire, round, *pair) for pair in zip(d_rows, d_src, strict=True)])
        del d_rows
        if not own_done:
            own_rows()
            own_done = True
        while len(homeward) > schedule.prefetch:
            _land(homeward)
    while homeward:
        _land(homeward)
    return reducer.finish_backward(state), d_src


class _Fetcher:
    """The rounds of some source tensors, started ahead and handed out in their order."""

    def __init__(self, topology: Topology, wire: Wire, src: Tensors, keep_packed: bool = False) -> None:
        self._topology, self._wire, self._src = topology, wire, src
        self._keep_packed = keep_packed
        self._flights: deque[list[InFlight]] = deque()
        self._started = self._finished = 0
        self.packed: Tensors = ()  # of the last round, as it travelled

    def start(self, up_to: int) -> None:
        """Starts the first rounds, so many of them."""
        rounds = self._topology.rounds if self._src else ()
        while self._started < min(up_to, len(rounds)):
            route = rounds[self._started].route
            self._flights.append(
                [
                    start_exchange(self._topology.comm, route, rows, self._wire.codec, self._wire.kind, "halo rows")
                    for rows in self._src
                ]
            )
            self._started += 1

    def next(self) -> Tensors:
        """The rows of the next round; others are on their way."""
        if not self._src:
            return ()
        self._finished += 1
        self.start(self._finished)
        flights = self._flights.popleft()
        if self._keep_packed:
            self.packed = tuple(_only(flight.messages()) for flight in flights)
        rows = tuple(flight.finish() for flight in flights)
        self.start(self._finished + self._topology.schedule.prefetch)
        return rows


def _only(messages: dict[int, Tensor]) -> Tensor:
    """The message of a round from one worker; empty where it has no rows."""
    assert len(messages) <= 1, "packed rows are kept by rounds from one worker each"
    return next(iter(messages.values()), torch.empty(0, dtype=torch.uint8))


def _kept(topology: Topology, wire: Wire, halo: tuple[Tensors, ...], number: int, src: Tensors) -> Tensors:
    """A round's rows as the forward pass saw them."""
    if not halo:
        return ()
    if topology.schedule.keep == "rows":
        return halo[number]
    rows = []
    for message, own in zip(halo[number], src, strict=True):
        decoded = memory.empty((topology.rounds[number].num_rows, own.shape[1]), own.dtype, own.device)
        if decoded.numel():
            wire.codec.decode(message, decoded)
        rows.append(decoded)
    return tuple(rows)


def _start_home(topology: Topology, wire: Wire, round: Round, d_rows: Tensor, d_own: Tensor) -> InFlight:
    return start_exchange(
        topology.comm, round.route.transpose(), d_rows, wire.codec, "hidden_backward", "halo gradients", out=d_own
    )


def _land(flights: deque[list[InFlight]]) -> None:
    for flight in flights.popleft():
        flight.finish()


def _sides(topology: Topology, src_ids: Tensor) -> Sides:
    return Sides(topology.ids[: topology.num_out], src_ids)


def _cut(tensors: Tensors, span: slice) -> Tensors:
    return tuple(tensor[span] for tensor in tensors)
