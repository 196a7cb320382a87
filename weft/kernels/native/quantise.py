"""Rows as integers of 2, 4 or 8 bits."""

from torch import Tensor

from weft.kernels import _native
from weft.kernels.native.pointers import UINT64, pointer, threads


def pack(
    x: Tensor,
    index: Tensor | None,
    bits: Tensor,
    offsets: Tensor,
    ids: Tensor,
    key: int,
    out: Tensor,
    spans: Tensor | None = None,
) -> int:
    return _native.pack(
        pointer(x), x.shape[1], pointer(index), bits.numel(), pointer(bits), pointer(offsets), pointer(ids),
        key & UINT64, pointer(out), pointer(spans), threads(),
    )  # fmt: skip


def unpack(
    message: Tensor, bits: Tensor, offsets: Tensor, into: Tensor, index: Tensor | None = None, add: bool = False
) -> Tensor:
    _native.unpack(
        pointer(message), into.shape[1], bits.numel(), pointer(bits), pointer(offsets), pointer(index), pointer(into),
        add, threads(),
    )  # fmt: skip
    return into
