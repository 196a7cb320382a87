"""A codec of a user's own, in one file outside the package: rows as IEEE half precision on the wire."""

import torch
from torch import Tensor

from weft.aggregate import PlainFormat, register_codec
from weft.comm.codec import place, take
from weft.comm.route import Rows, num_rows


class Float16Codec:
    name = "fp16"
    verbatim = False

    def leaving_bytes(self, peer: int, count: int, columns: int, dtype: torch.dtype) -> int:
        return count * columns * 2

    arriving_bytes = leaving_bytes

    def encode(self, peer: int, x: Tensor, rows: Rows) -> Tensor:
        return take(x, rows).half().contiguous()

    def decode(self, peer: int, message: Tensor, into: Tensor, rows: Rows, add: bool) -> None:
        halves = message.view(torch.float16).view(num_rows(rows), into.shape[1])
        place(halves.to(into.dtype), into, rows, add)


register_codec("fp16", lambda options: PlainFormat(Float16Codec(), rounding="float"))
