"""How the rows of a pass look on the wire: one form for all, or integers whose widths follow the rows.

A format makes a `Wire` for each aggregation of a pass, which hands out the codec of every round and direction. Widths
live in lanes, one for each (aggregation, round, source tensor, direction); the adaptive format chooses them again every
so many epochs from the ranges that it saw.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.noise import hash_key
from weft.aggregate.topology import Edges, Topology
from weft.aggregate.widths import Channel, Problem, assign
from weft.comm import (
    Channels,
    Codec,
    Communicator,
    Layout,
    QuantisedCodec,
    Route,
    bf16,
    measure_channels,
    raw,
)
from weft.comm.route import num_rows
from weft.errors import unknown
from weft.kernels import memory, packed_bytes

Direction = Literal["forward", "backward"]
Histogram = dict[str, dict[str, dict[int, int]]]  # layer -> direction -> bits -> rows


@dataclass(frozen=True)
class Call:
    """One aggregation of a training pass."""

    number: int  # in the pass
    layer: str  # as it is named to people
    kind: str  # byte class of its forward messages
    topology: Topology
    edges: Edges
    linear: bool  # its coefficients are constants, which stand in the blocks
    exact: tuple[int, ...]  # source tensors that must not be rounded
    seed: int
    epoch: int
    step: tuple[int, ...]


class Wire(NamedTuple):
    kind: str
    forward: Callable[[int, int, int], Codec]  # of (round, source tensor, its width)
    backward: Callable[[int, int, int], Codec]


class Format(Protocol):
    name: str
    packs: bool  # what arrives is not the rows' own memory

    def wire(self, call: Call) -> Wire: ...


class Plain:
    """Every row in the same form."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.name, self.packs = codec.name, not codec.verbatim

    def wire(self, call: Call) -> Wire:
        return plain_wire(self.codec, call.kind)


RAW = Plain(raw)


def plain_wire(codec: Codec, kind: str) -> Wire:
    return Wire(kind, lambda *_: codec, lambda *_: codec)


@dataclass
class Lane:
    """The messages of one round in one direction."""

    layer: str
    direction: Direction
    route: Route
    width: int
    leaving: dict[int, Layout]  # by peer
    arriving: dict[int, Layout]
    block: Block
    linear: bool
    degrees: Tensor  # of the vertices that the messages reach
    spans: dict[int, Tensor] = field(default_factory=dict)
    importance: dict[int, Tensor] | None = None  # by peer, of each row: sum of squared coefficients, once asked for
    sent: dict[int, Tensor] = field(default_factory=dict)
    received: dict[int, Tensor] = field(default_factory=dict)


Key = tuple[int, int, int, Direction]


class Quantised:
    """Integers of `bits` bits; with `delta`, differences to what the last epoch's rows came to."""

    packs = True

    def __init__(self, bits: int, delta: bool = False) -> None:
        self.name = f"int{bits}"
        self.bits, self.delta = bits, delta
        self.lanes: dict[Key, Lane] = {}

    def wire(self, call: Call) -> Wire:
        def codec(direction: Direction) -> Callable[[int, int, int], Codec]:
            def of(round: int, tensor: int, width: int) -> Codec:
                if tensor in call.exact or packed_bytes(width, 8) >= 4 * width:
                    return raw
                lane = self._lane(call, (call.number, round, tensor, direction), width)
                return self._codec(call, lane, round, tensor)

            return of

        return Wire(call.kind, codec("forward"), codec("backward"))

    def _codec(self, call: Call, lane: Lane, round: int, tensor: int) -> Codec:
        forward = lane.direction == "forward"
        # Going out, a vertex's row is rounded alike wherever it is sent from. On the way back several workers send
        # their shares of one gradient, and those are rounded independently.
        who = 0 if forward else 1 + call.topology.comm.worker
        delta = self.delta and forward
        return QuantisedCodec(
            leaving=lane.leaving.__getitem__,
            arriving=lane.arriving.__getitem__,
            ids=call.topology.ids if forward else call.topology.rounds[round].ids,
            key=hash_key(call.seed, call.epoch, *call.step, 0x71, call.number, tensor, who),
            where=f"{call.layer}, {lane.direction}",
            spans=lane.spans or None,
            sent=lane.sent.__getitem__ if delta else None,
            received=lane.received.__getitem__ if delta else None,
        )

    def _lane(self, call: Call, key: Key, width: int) -> Lane:
        _, number, _, direction = key
        forward = call.topology.rounds[number].route
        route = forward if direction == "forward" else forward.transpose()
        lane = self.lanes.get(key)
        if lane is None or lane.route is not route or lane.width != width:
            lane = self.lanes[key] = self._new_lane(call, key, route, width)
        return lane

    def _new_lane(self, call: Call, key: Key, route: Route, width: int) -> Lane:
        device = call.topology.ids.device

        def layouts(side: str, rows: tuple[Tensor | slice, ...]) -> dict[int, Layout]:
            return {
                peer: Layout.of(self._first_bits(key, side, peer, num_rows(some)).to(device), width)
                for peer, some in enumerate(rows)
                if num_rows(some) and peer != call.topology.comm.worker
            }

        lane = Lane(
            call.layer, key[3], route, width, layouts("leaving", route.send_rows),
            layouts("arriving", route.recv_rows), call.edges.rounds[key[1]], call.linear, call.topology.in_degrees,
        )  # fmt: skip
        if self.delta and key[3] == "forward":
            lane.sent, lane.received = _references(lane.leaving, width), _references(lane.arriving, width)
        return lane

    def _first_bits(self, key: Key, side: str, peer: int, count: int) -> Tensor:
        return torch.full((count,), self.bits, dtype=torch.uint8)

    def histogram(self) -> Histogram:
        """How many rows this worker sends with how many bits."""
        found: Histogram = {}
        for lane in self.lanes.values():
            counts = found.setdefault(lane.layer, {}).setdefault(lane.direction, dict.fromkeys((2, 4, 8), 0))
            for layout in lane.leaving.values():
                for bits in counts:
                    counts[bits] += int((layout.bits == bits).sum())
        return found


class Adaptive(Quantised):
    """Widths chosen for each row from its range, its coefficients and the speed of the channels.

    The first epoch takes 8 bits for everything; after it, and then after every `cycle` epochs, widths are assigned.
    """

    def __init__(self, cycle: int, fidelity: float, delta: bool = False) -> None:
        super().__init__(8, delta)
        self.name = "adaptive"
        self.cycle, self.fidelity = cycle, fidelity
        self.channels: Channels | None = None
        self._restored: dict[str, Tensor] = {}

    def _new_lane(self, call: Call, key: Key, route: Route, width: int) -> Lane:
        lane = super()._new_lane(call, key, route, width)
        device = call.topology.ids.device
        lane.spans = {peer: torch.zeros(layout.bits.numel(), device=device) for peer, layout in lane.leaving.items()}
        return lane

    def _first_bits(self, key: Key, side: str, peer: int, count: int) -> Tensor:
        before = self._restored.pop(_name(key, side, peer), None)
        return before if before is not None and before.numel() == count else super()._first_bits(key, side, peer, count)

    def end_epoch(self, epoch: int, comm: Communicator) -> float | None:
        """Chooses widths anew where it is time to; seconds that it took, or None. All workers call it together."""
        if comm.num_workers == 1 or (epoch != 1 and epoch % self.cycle):
            return None
        started = time.perf_counter()
        lanes = [self.lanes[key] for key in sorted(self.lanes)]
        _share(lanes, self.choose(lanes, comm), comm)
        return time.perf_counter() - started

    def choose(self, lanes: Sequence[Lane], comm: Communicator) -> list[list[Tensor]]:
        """Bits of every row that leaves this worker, of each lane by peer."""
        if self.channels is None:
            largest = max((layout.num_bytes for lane in lanes for layout in lane.leaving.values()), default=0)
            self.channels = measure_channels(comm, largest)
        groups = self._turns(comm.num_workers - 1)
        chosen = assign(
            [self._problem(group, comm, self.channels) for group in groups],
            self.fidelity,
            lambda values: comm.all_gather(values, "control", "variances and times"),
        )
        bits: dict[int, list[Tensor]] = {id(lane): [] for lane in lanes}
        for group, messages in zip(groups, chosen, strict=True):
            for (peer, pieces), widths in zip(_by_peer(group), messages, strict=True):
                counts = [lane.leaving[peer].bits.numel() for lane in pieces]
                for lane, some in zip(pieces, torch.split(widths, counts), strict=True):
                    bits[id(lane)].append(some)
        return [bits[id(lane)] for lane in lanes]

    def _turns(self, num_peers: int) -> list[list[Lane]]:
        """Lanes that go to the same peer one after another: pieces of one message, whose widths are chosen together."""
        rounds = Counter((number, tensor, direction) for number, _, tensor, direction in self.lanes)
        turns: dict[Key, list[Lane]] = {}
        for key in sorted(self.lanes):
            number, round, tensor, direction = key
            turn = round * num_peers // rounds[number, tensor, direction]
            turns.setdefault((number, turn, tensor, direction), []).append(self.lanes[key])
        return list(turns.values())

    def _problem(self, lanes: Sequence[Lane], comm: Communicator, channels: Channels) -> Problem:
        made = []
        for lane in lanes:
            if lane.direction == "forward" and lane.importance is None:
                lane.importance = _importance(lane, comm)
        for peer, pieces in _by_peer(lanes):
            weights = torch.cat([self._weights(lane, peer) for lane in pieces])
            latency, rate = channels.latency[comm.worker, peer], channels.seconds_per_byte[comm.worker, peer]
            made.append(Channel(weights, pieces[0].width, float(latency), float(rate)))
        return made

    @staticmethod
    def _weights(lane: Lane, peer: int) -> Tensor:
        weights = lane.spans[peer].double().cpu().square() * (lane.width / 6)
        return weights if lane.importance is None else weights * lane.importance[peer].double().cpu()

    # -- going on after a checkpoint ----------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """What the next epochs depend on, of this worker."""
        found = dict(self._restored)
        for key, lane in self.lanes.items():
            for side, layouts in (("leaving", lane.leaving), ("arriving", lane.arriving)):
                found |= {_name(key, side, peer): layout.bits for peer, layout in layouts.items()}
        if self.channels is not None:
            found |= {"latency": self.channels.latency, "seconds_per_byte": self.channels.seconds_per_byte}
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        state = dict(state)
        if "latency" in state:
            self.channels = Channels(state.pop("latency"), state.pop("seconds_per_byte"))
        self._restored, self.lanes = state, {}


def _name(key: Key, side: str, peer: int) -> str:
    number, round, tensor, direction = key
    return f"{number}.{round}.{tensor}.{direction}.{side}.{peer}"


def _references(layouts: dict[int, Layout], width: int) -> dict[int, Tensor]:
    made = {}
    for peer, layout in layouts.items():
        rows = memory.empty((layout.bits.numel(), width), torch.float32, layout.bits.device)
        made[peer] = rows.zero_()
    return made


def _by_peer(lanes: Sequence[Lane]) -> list[tuple[int, list[Lane]]]:
    """The lanes in which rows leave for each peer."""
    peers = sorted({peer for lane in lanes for peer in lane.leaving})
    return [(peer, [lane for lane in lanes if peer in lane.leaving]) for peer in peers]


def _importance(lane: Lane, comm: Communicator) -> dict[int, Tensor]:
    """By peer, for each row that leaves: the sum of the squared coefficients that it is multiplied by there."""
    mine = squared_coefficients(lane.block, lane.linear, lane.degrees)
    leaving: list[Tensor | None] = [None] * comm.num_workers
    arriving: list[Tensor | None] = [None] * comm.num_workers
    for peer in lane.arriving:  # what came from there is what they want to know about
        leaving[peer] = mine[lane.route.recv_rows[peer]].contiguous()
    for peer, layout in lane.leaving.items():
        arriving[peer] = torch.empty(layout.bits.numel(), device=mine.device)
    comm.post(leaving, arriving, "topology", "squared coefficients").wait()
    return {peer: rows for peer, rows in enumerate(arriving) if rows is not None}


def squared_coefficients(block: Block, linear: bool, degrees: Tensor) -> Tensor:
    """Of each column of a block, over its edges, float32; attention is taken to share itself out evenly."""
    csr = block.csr
    counts = csr.degrees()
    rows = torch.repeat_interleave(torch.arange(csr.num_rows, device=counts.device), counts)
    if linear:
        value = torch.ones(csr.num_edges, device=counts.device) if csr.weight is None else csr.weight.float()
        if block.row_scale is not None:
            value = value * block.row_scale.float()[rows]
        if block.col_scale is not None:
            value = value * block.col_scale.float()[csr.indices.long()]
    else:
        value = 1.0 / degrees.clamp(min=1).float()[rows]
    return torch.zeros(csr.num_cols, device=counts.device).index_add_(0, csr.indices.long(), value.square())


def _share(lanes: Sequence[Lane], chosen: Sequence[Sequence[Tensor]], comm: Communicator) -> None:
    """Tells every receiver the widths of what will come, of all lanes in one message."""
    leaving: list[list[Tensor]] = [[] for _ in range(comm.num_workers)]
    sizes: list[list[int]] = [[] for _ in range(comm.num_workers)]
    for lane, bits in zip(lanes, chosen, strict=True):
        for peer, widths in zip(sorted(lane.leaving), bits, strict=True):
            lane.leaving[peer] = Layout.of(widths.to(lane.leaving[peer].bits.device), lane.width)
            leaving[peer].append(lane.leaving[peer].bits)
        for peer, layout in lane.arriving.items():
            sizes[peer].append(layout.bits.numel())
    device = comm.device
    arriving = [torch.empty(sum(counts), dtype=torch.uint8, device=device) if counts else None for counts in sizes]
    comm.post([torch.cat(bits) if bits else None for bits in leaving], arriving, "control", "widths of rows").wait()
    coming = [
        iter(() if rows is None else torch.split(rows, counts)) for rows, counts in zip(arriving, sizes, strict=True)
    ]
    for lane in lanes:
        for peer in lane.arriving:
            lane.arriving[peer] = Layout.of(next(coming[peer]), lane.width)


CODECS = ("raw", "bf16", "int8", "int4", "int2", "adaptive")


def format_named(name: str, cycle: int = 50, fidelity: float = 0.5, delta: bool = False) -> Format:
    """`cycle` and `fidelity` are for adaptive, `delta` for all that are integers."""
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    if name == "adaptive":
        return Adaptive(cycle, fidelity, delta)
    if name.startswith("int"):
        return Quantised(int(name.removeprefix("int")), delta)
    return Plain(bf16 if name == "bf16" else raw)
