"""Rows as integers of 2, 4 or 8 bits on the wire, each row of a message with its own number of bits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm.codec import place, take
from weft.comm.route import Rows, num_rows
from weft.errors import UserError
from weft.kernels import memory, pack, packed_offsets, unpack


@dataclass(frozen=True)
class MessageLayout:
    """Where the rows of one message stand in it."""

    bits: Tensor  # uint8 [R]
    offsets: Tensor  # int64 [R]
    num_bytes: int

    @staticmethod
    def of(bits: Tensor, columns: int) -> "MessageLayout":
        return MessageLayout(bits, *packed_offsets(columns, bits))


@dataclass(frozen=True)
class QuantisedCodec:
    """One exchange's messages. What differs from peer to peer is asked of the two functions by its number."""

    leaving: Callable[[int], MessageLayout]
    arriving: Callable[[int], MessageLayout]
    ids: Tensor  # global ids of the rows that are encoded
    key: int  # of the rounding
    where: str  # "layer 2, forward": named when something is not finite
    spans: Mapping[int, Tensor] | None = None  # by peer, takes largest minus smallest of every row that leaves
    sent: Callable[[int], Tensor] | None = None  # float32 [R, D] that both ends agreed on: differences to it travel
    received: Callable[[int], Tensor] | None = None

    name = "quantised"
    verbatim = False

    def leaving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        return self.leaving(peer).num_bytes

    def arriving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        return self.arriving(peer).num_bytes

    def encode(self, peer: int, x: Tensor, rows: Rows) -> Tensor:
        layout = self.leaving(peer)
        message = memory.empty((layout.num_bytes,), torch.uint8, x.device)
        spans = None if self.spans is None else self.spans[peer]
        reference = None if self.sent is None else self.sent(peer)
        index: Tensor | None = None
        if reference is not None:
            source = take(x, rows).float() - reference
        elif isinstance(rows, slice):
            source = x[rows].float()
        else:
            source, index = x.float(), rows
        bad = pack(source, index, layout.bits, layout.offsets, self.ids[rows], self.key, message, spans)
        if bad >= 0:
            raise UserError(
                f"vertex {int(self.ids[rows][bad])} has values that are not finite in {self.where}: "
                "lower optim.lr or set optim.clip_norm"
            )
        if reference is not None:
            unpack(message, layout.bits, layout.offsets, reference, add=True)
        return message

    def decode(self, peer: int, message: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
        layout = self.arriving(peer)
        if self.received is not None:
            reference = unpack(message, layout.bits, layout.offsets, self.received(peer), add=True)
            place(reference.to(into.dtype), into, rows, add)
        elif into.dtype == torch.float32:
            if isinstance(rows, slice):
                unpack(message, layout.bits, layout.offsets, into[rows], add=add)
            else:
                unpack(message, layout.bits, layout.offsets, into, rows, add)
        else:
            decoded = memory.empty((num_rows(rows), into.shape[1]), torch.float32, into.device)
            place(unpack(message, layout.bits, layout.offsets, decoded).to(into.dtype), into, rows, add)
