"""Rows as integers on the wire, every message of a round with a layout and a memory of its own.

What is remembered belongs to the messages of one (aggregation, round, source tensor, direction): how many bits each row
has and, where differences travel, the rows that both ends agree on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.wire import Aggregation, Format, FormatTraits, Histogram, Wire
from weft.comm import Codec, MessageLayout, QuantisedCodec, Route, raw
from weft.comm.route import num_rows
from weft.kernels import memory, packed_bytes
from weft.kernels.hash import hash_key

Direction = Literal["forward", "backward"]
Key = tuple[int, int, int, Direction]  # (aggregation, round, source tensor, direction)


@dataclass
class MessageSet:
    """The messages of one round of an aggregation in one direction, and what is remembered of them between epochs."""

    layer: str
    direction: Direction
    route: Route
    columns: int  # of each row
    leaving: dict[int, MessageLayout]  # by peer
    arriving: dict[int, MessageLayout]
    block: Block  # the round's edges
    linear: bool  # as in Aggregation
    degrees: Tensor  # of the vertices that the messages reach
    spans: dict[int, Tensor] = field(
        default_factory=dict
    )  # by peer, of each row that left: largest minus smallest value
    importance: dict[int, Tensor] | None = None  # by peer, of each row: sum of squared coefficients, once asked for
    sent: dict[int, Tensor] = field(default_factory=dict)  # by peer, the rows that differences refer to, float32
    received: dict[int, Tensor] = field(default_factory=dict)


class Quantised(Format):
    """Integers of `bits` bits; with `delta`, of differences to the rows of the epoch before, as they arrived."""

    traits = FormatTraits("integer", packs=True, takes_delta=True)

    def __init__(self, bits: int, delta: bool = False) -> None:
        self.name = f"int{bits}"
        self.bits, self.delta = bits, delta
        self.message_sets: dict[Key, MessageSet] = {}
        self._restored: dict[str, Tensor] = {}  # of messages that no pass has come to since the run went on

    def wire(self, aggregation: Aggregation) -> Wire:
        def codec(direction: Direction) -> Callable[[int, int, int], Codec]:
            def of(round: int, tensor: int, columns: int) -> Codec:
                if tensor in aggregation.exact or packed_bytes(columns, 8) >= 4 * columns:
                    return raw
                messages = self._messages_of(aggregation, (aggregation.number, round, tensor, direction), columns)
                return self._codec(aggregation, messages, round, tensor)

            return of

        return Wire(aggregation.kind, codec("forward"), codec("backward"))

    def _codec(self, aggregation: Aggregation, messages: MessageSet, round: int, tensor: int) -> Codec:
        forward = messages.direction == "forward"
        # Going out, a vertex's row is rounded alike wherever it is sent from. On the way back several workers send
        # their shares of one gradient, and those are rounded independently.
        who = 0 if forward else 1 + aggregation.topology.comm.worker
        delta = self.delta and forward
        return QuantisedCodec(
            leaving=messages.leaving.__getitem__,
            arriving=messages.arriving.__getitem__,
            ids=aggregation.topology.ids if forward else aggregation.topology.rounds[round].ids,
            key=hash_key(aggregation.seed, aggregation.epoch, *aggregation.step, 0x71, aggregation.number, tensor, who),
            where=f"{aggregation.layer}, {messages.direction}",
            spans=messages.spans or None,
            sent=messages.sent.__getitem__ if delta else None,
            received=messages.received.__getitem__ if delta else None,
        )

    def _messages_of(self, aggregation: Aggregation, key: Key, columns: int) -> MessageSet:
        _, number, _, direction = key
        forward = aggregation.topology.rounds[number].route
        route = forward if direction == "forward" else forward.transpose()
        messages = self.message_sets.get(key)
        if messages is None or messages.route is not route or messages.columns != columns:
            messages = self.message_sets[key] = self._begin(aggregation, key, route, columns)
        return messages

    def _begin(self, aggregation: Aggregation, key: Key, route: Route, columns: int) -> MessageSet:
        device = aggregation.topology.ids.device

        def layouts(side: str, rows: tuple[Tensor | slice, ...]) -> dict[int, MessageLayout]:
            return {
                peer: MessageLayout.of(self._first_bits(key, side, peer, num_rows(some)).to(device), columns)
                for peer, some in enumerate(rows)
                if num_rows(some) and peer != aggregation.topology.comm.worker
            }

        messages = MessageSet(
            aggregation.layer, key[3], route, columns, layouts("leaving", route.send_rows),
            layouts("arriving", route.recv_rows), aggregation.edges.rounds[key[1]], aggregation.linear,
            aggregation.topology.in_degrees,
        )  # fmt: skip
        if self.delta and key[3] == "forward":
            messages.sent = self._references(key, "sent", messages.leaving, columns)
            messages.received = self._references(key, "received", messages.arriving, columns)
        return messages

    def _references(self, key: Key, side: str, layouts: dict[int, MessageLayout], columns: int) -> dict[int, Tensor]:
        """What both ends agree on: nothing at first, or what a checkpoint kept."""
        made = {}
        for peer, layout in layouts.items():
            rows = memory.empty((layout.bits.numel(), columns), torch.float32, layout.bits.device)
            before = self._restored.pop(state_name(key, side, peer), None)
            made[peer] = rows.zero_() if before is None or before.shape != rows.shape else rows.copy_(before)
        return made

    def _first_bits(self, key: Key, side: str, peer: int, count: int) -> Tensor:
        return torch.full((count,), self.bits, dtype=torch.uint8)

    def state(self) -> dict[str, Tensor]:
        found = dict(self._restored)
        for key, messages in self.message_sets.items():
            for side, references in (("sent", messages.sent), ("received", messages.received)):
                found |= {state_name(key, side, peer): rows for peer, rows in references.items()}
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._restored, self.message_sets = dict(state), {}

    def histogram(self) -> Histogram:
        """How many rows this worker sends with how many bits."""
        found: Histogram = {}
        for messages in self.message_sets.values():
            counts = found.setdefault(messages.layer, {}).setdefault(messages.direction, dict.fromkeys((2, 4, 8), 0))
            for layout in messages.leaving.values():
                for bits in counts:
                    counts[bits] += int((layout.bits == bits).sum())
        return found


def state_name(key: Key, side: str, peer: int) -> str:
    number, round, tensor, direction = key
    return f"{number}.{round}.{tensor}.{direction}.{side}.{peer}"
