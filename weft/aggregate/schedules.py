"""Forward and backward of any reducer under any schedule: rounds started ahead, absorbed in turn, and freed.

Every worker walks the same rounds in the same order, so each send finds its receive; nobody waits for a barrier, and
nobody is further ahead of its peers than the rounds in flight.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from weft.aggregate.async_rows import Completion, Deferred, asynchronous, wait_in_backward
from weft.aggregate.blocks import Block
from weft.aggregate.reducers import Reducer, Sides, Tensors
from weft.aggregate.rounds import Round
from weft.aggregate.topology import Edges, Topology
from weft.aggregate.wire import Wire
from weft.comm import PendingExchange, start_exchange
from weft.comm.route import num_rows
from weft.kernels import memory


class Aggregate(NamedTuple):
    out: Tensor
    state: Tensors  # what the reducer keeps for its backward pass
    halo: list[Tensors]  # of each round, what the schedule keeps; empty: nothing
    completion: Completion | None = None  # of rows that are still to come


def forward(
    topology: Topology,
    wire: Wire,
    reducer: Reducer,
    edges: Edges,
    dst: Tensors,
    src: Tensors,
    final_rows: Sequence[int] | None = None,
    deferred: Deferred | None = None,
) -> Aggregate:
    """The aggregate; with `final_rows`, before all of it is final.

    `final_rows`: how many first rows are final before any round has arrived, and after each. `deferred`: work on rows
    of `dst` and `src` that must be done before these are sent or read.
    """
    schedule = topology.schedule
    keeps = reducer.traits.reads_sources and schedule.keep != "nothing"
    fetched = _Fetcher(topology, wire, src, keeps and schedule.keep == "packed", deferred)
    fetched.start(schedule.prefetch)
    if deferred is not None:
        deferred.wait()
    state = reducer.start(dst, src, edges.num_rows)
    for block, span in zip(edges.own, topology.spans, strict=True):
        reducer.absorb(state, block, _sides(topology, topology.ids[span]), dst, _cut(src, span))
    kept: list[Tensors] = []

    def arrive(block: Block, round: Round) -> None:
        rows = fetched.next()
        if round.num_rows:
            reducer.absorb(state, block, _sides(topology, round.ids), dst, rows)
        if keeps and rows:
            kept.append(fetched.packed if schedule.keep == "packed" else rows)

    arrivals = [partial(arrive, *pair) for pair in zip(edges.rounds, topology.rounds, strict=True)]
    if final_rows is None:
        for rows_come in arrivals:
            rows_come()
        out, remembered = reducer.finish(state)
        return Aggregate(out, remembered, kept)
    ready = slice(0, final_rows[0])
    out, remembered = reducer.finish(state, ready)
    spans = [[slice(*ends)] for ends in pairwise(final_rows)]
    completion = Completion([ready], zip(arrivals, spans, strict=True))
    completion.do_later(lambda rows: reducer.finish(state, rows))
    return Aggregate(out, remembered, kept, completion)


def backward(
    topology: Topology,
    wire: Wire,
    reducer: Reducer,
    edges: Edges,
    grad: Tensor,
    state: Any,
    halo: Sequence[Tensors],
    dst: Tensors,
    src: Tensors,
    widths: Sequence[int],
    sends_home: bool = True,
    overlaps: bool = False,
) -> tuple[tuple[Tensor | None, ...], Tensors]:
    """Gradients of `dst` and `src`; with `overlaps`, that of `src` before all shares of other workers are home.

    `state` is the reducer's, its backward pass begun; `halo` what was kept of each round; `widths` the columns of each
    source tensor; `sends_home`: source rows want gradients.
    """
    schedule = topology.schedule
    d_src = tuple(memory.empty((topology.num_in, width), grad.dtype, grad.device) for width in widths)
    refetches = reducer.traits.reads_sources and bool(src) and not halo
    fetched = _Fetcher(topology, wire, src if refetches else ())
    fetched.start(schedule.prefetch)
    pending: deque[list[PendingExchange]] = deque()

    def own_rows() -> None:
        for block, span in zip(edges.own, topology.spans, strict=True):
            reducer.backward_block(
                state, block, _sides(topology, topology.ids[span]), dst, _cut(src, span), _cut(d_src, span)
            )

    # Own rows fill the time in which something travels: the first rows to come, or as many gradients on their way home
    # as may be. The latter are added to what own rows have written, so they are not taken in before.
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
            pending.append(
                [
                    _start_home(topology, wire, number, at, *pair)
                    for at, pair in enumerate(zip(d_rows, d_src, strict=True))
                ]
            )
        del d_rows
        if not own_done and number + 1 >= min(schedule.prefetch, len(topology.rounds)):
            own_rows()
            own_done = True
        while len(pending) > schedule.prefetch:
            _finish_oldest(pending)
    if overlaps and len(d_src) == 1 and 0 < len(pending) == len(topology.rounds):
        exchanges, pending = pending, deque()
        unread, *read = topology.home_spans
        completion = Completion(unread, [(partial(_finish_oldest, exchanges), spans) for spans in read])
        wait_in_backward(completion)
        d_src = (asynchronous(d_src[0], completion),)
    while pending:
        _finish_oldest(pending)
    return reducer.finish_backward(state), d_src


class _Fetcher:
    """The rounds of some source tensors, started ahead and handed out in their order."""

    def __init__(
        self, topology: Topology, wire: Wire, src: Tensors, keep_packed: bool = False, deferred: Deferred | None = None
    ) -> None:
        self._topology, self._wire, self._src = topology, wire, src
        self._keep_packed, self._deferred = keep_packed, deferred
        self._started_exchanges: deque[list[PendingExchange]] = deque()
        self._started = self._finished = 0
        self.packed: Tensors = ()  # of the last round, as it travelled

    def start(self, up_to: int) -> None:
        """Starts the first rounds, so many of them."""
        rounds = self._topology.rounds if self._src else ()
        while self._started < min(up_to, len(rounds)):
            number, wire = self._started, self._wire
            if self._deferred is not None:
                self._deferred.reach(self._topology.sent_spans[number])
            exchanges = []
            for at, rows in enumerate(self._src):
                codec = wire.forward(number, at, rows.shape[1])
                route = rounds[number].route
                exchanges.append(start_exchange(self._topology.comm, route, rows, codec, wire.kind, "halo rows"))
            self._started_exchanges.append(exchanges)
            self._started += 1

    def next(self) -> Tensors:
        """The rows of the next round; others are on their way."""
        if not self._src:
            return ()
        self._finished += 1
        self.start(self._finished)
        exchanges = self._started_exchanges.popleft()
        messages = [_only(exchange) for exchange in exchanges] if self._keep_packed else []
        rows = tuple(exchange.finish() for exchange in exchanges)
        if messages:
            self.packed = tuple(row if packed is None else packed for packed, row in zip(messages, rows, strict=True))
        self.start(self._finished + self._topology.schedule.prefetch)
        return rows


def _only(exchange: PendingExchange) -> Tensor | None:
    """The message of a round from one worker; None where rows travel as they are, or there are none."""
    messages = exchange.messages()
    assert len(messages) <= 1, "packed rows are kept by rounds from one worker each"
    return next(iter(messages.values()), None)


def _kept(topology: Topology, wire: Wire, halo: Sequence[Tensors], number: int, src: Tensors) -> Tensors:
    """A round's rows as the forward pass saw them."""
    if not halo:
        return ()
    if topology.schedule.keep == "rows":
        return halo[number]
    route = topology.rounds[number].route
    peer = next((peer for peer, rows in enumerate(route.recv_rows) if num_rows(rows)), None)
    rows = []
    for at, (message, own) in enumerate(zip(halo[number], src, strict=True)):
        codec = wire.forward(number, at, own.shape[1])
        if codec.verbatim or peer is None:
            rows.append(message)
            continue
        decoded = memory.empty((route.num_out, own.shape[1]), own.dtype, own.device)
        codec.decode(peer, message, decoded, slice(0, route.num_out), add=False)
        rows.append(decoded)
    return tuple(rows)


def _start_home(topology: Topology, wire: Wire, number: int, at: int, d_rows: Tensor, d_own: Tensor) -> PendingExchange:
    codec = wire.backward(number, at, d_rows.shape[1])
    route = topology.rounds[number].route.transpose()
    return start_exchange(topology.comm, route, d_rows, codec, "hidden_backward", "halo gradients", out=d_own)


def _finish_oldest(exchanges: deque[list[PendingExchange]]) -> None:
    """Takes in the rows of the round that was started first."""
    for exchange in exchanges.popleft():
        exchange.finish()


def _sides(topology: Topology, src_ids: Tensor) -> Sides:
    return Sides(topology.ids[: topology.num_out], src_ids)


def _cut(tensors: Tensors, span: slice) -> Tensors:
    return tuple(tensor[span] for tensor in tensors)
