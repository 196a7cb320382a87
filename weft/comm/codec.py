"""How rows look on the wire."""

from typing import Protocol

import torch
from torch import Tensor

from weft.comm.route import Rows, num_rows
from weft.kernels import gather, memory, scatter_add


class Codec(Protocol):
    """Rows of a matrix to one message for each peer, and back. Both ends know a message's length beforehand."""

    name: str
    verbatim: bool  # the message is the rows' own memory: no encoding, received straight into place

    def leaving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        """Bytes of the message that takes `count` rows of `columns` columns to a peer."""

    def arriving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int: ...

    def encode(self, peer: int, x: Tensor, rows: Rows) -> Tensor:
        """Those rows of x [N, D] as a message, contiguous, leaving_bytes long; may share their memory."""

    def decode(self, peer: int, message: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
        """Writes a message (uint8) over those rows of `into` [N, D], or adds it to them."""


class RawCodec:
    """The rows as they are."""

    name = "raw"
    verbatim = True

    def leaving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        return count * columns * dtype.itemsize

    arriving_bytes = leaving_bytes

    def encode(self, peer: int, x: Tensor, rows: Rows) -> Tensor:
        return take(x, rows).contiguous()

    def decode(self, peer: int, message: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
        place(message.view(into.dtype).view(num_rows(rows), into.shape[1]), into, rows, add)


class Bf16Codec:
    """Rows rounded to bfloat16 (nearest, ties to even), two bytes a value; sums stay in the rows' own dtype."""

    name = "bf16"
    verbatim = False

    def leaving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        return count * columns * 2

    arriving_bytes = leaving_bytes

    def encode(self, peer: int, x: Tensor, rows: Rows) -> Tensor:
        return take(x, rows).to(torch.bfloat16).contiguous()

    def decode(self, peer: int, message: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
        halves = message.view(torch.bfloat16).view(num_rows(rows), into.shape[1])
        if isinstance(rows, slice):
            place(halves, into, rows, add)
        else:
            place(memory.empty(halves.shape, into.dtype, into.device).copy_(halves), into, rows, add)


raw: Codec = RawCodec()
bf16: Codec = Bf16Codec()


def take(x: Tensor, rows: Rows) -> Tensor:
    if isinstance(rows, slice):
        return x[rows]
    return gather(x, rows, out=memory.empty((rows.numel(), x.shape[1]), x.dtype, x.device))


def place(values: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
    """Values over rows of a matrix, or added to them."""
    if isinstance(rows, slice):
        into[rows].add_(values) if add else into[rows].copy_(values)
    elif add:
        scatter_add(into, rows, values)
    else:
        into[rows] = values.to(into.dtype)
