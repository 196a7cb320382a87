"""How rows look on the wire."""

from typing import Protocol

import torch
from torch import Tensor

from weft.errors import unknown


class Codec(Protocol):
    """Rows [R, D] to a message and back. A message's length follows from the shape alone: both ends know it."""

    name: str
    verbatim: bool  # the message is the rows' own memory: no encoding, received straight into place

    def payload_bytes(self, num_rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of the message that carries num_rows rows of `width` columns."""

    def encode(self, rows: Tensor) -> Tensor:
        """The message, contiguous, payload_bytes long; may share the rows' memory."""

    def decode(self, payload: Tensor, into: Tensor) -> None:
        """Writes the rows of a message (uint8) over `into`, [R, D]."""


class RawCodec:
    """The rows as they are."""

    name = "raw"
    verbatim = True

    def payload_bytes(self, num_rows: int, width: int, dtype: torch.dtype) -> int:
        return num_rows * width * dtype.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        return rows.contiguous()

    def decode(self, payload: Tensor, into: Tensor) -> None:
        into.copy_(payload.view(into.dtype).view(into.shape))


class Bf16Codec:
    """Rows rounded to bfloat16 (nearest, ties to even), two bytes a value; sums stay in the rows' own dtype."""

    name = "bf16"
    verbatim = False

    def payload_bytes(self, num_rows: int, width: int, dtype: torch.dtype) -> int:
        return num_rows * width * 2

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(torch.bfloat16).contiguous()

    def decode(self, payload: Tensor, into: Tensor) -> None:
        into.copy_(payload.view(torch.bfloat16).view(into.shape))


raw: Codec = RawCodec()
bf16: Codec = Bf16Codec()

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (raw, bf16)}


def codec_named(name: str) -> Codec:
    if name not in _CODECS:
        raise unknown("codec", name, _CODECS)
    return _CODECS[name]
