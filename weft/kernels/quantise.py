"""Rows as integers of 2, 4 or 8 bits, each with its own smallest value and step, rounded without bias.

A row travels as [smallest value: float32][step: bf16, rounded up][its integers]; it is quantised with the very values
that travel. Rounding goes up or down by a hash of (key, global id, column), so that nothing is drawn from a state.
"""

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import kernel
from weft.kernels.checks import check_index, check_shape, check_state, require
from weft.kernels.reference.quantise import HEADER_BYTES


def packed_bytes(width: int, bits: int) -> int:
    """Bytes of a row of `width` columns in a message."""
    return HEADER_BYTES + (width * bits + 7) // 8


def packed_offsets(width: int, bits: Tensor) -> tuple[Tensor, int]:
    """Where the rows of a message begin, int64 [R], and its length, for their bits, uint8 [R]."""
    sizes = (bits.to(torch.int64) * width + 7) // 8 + HEADER_BYTES
    ends = torch.cumsum(sizes, 0)
    return ends - sizes, int(ends[-1]) if bits.numel() else 0


def pack(
    x: Tensor,  # float32 [N, D]
    index: Tensor | None,  # int64 [R], rows of x to take; None: all
    bits: Tensor,  # uint8 [R]
    offsets: Tensor,  # int64 [R], of packed_offsets
    ids: Tensor,  # int64 [R], global ids
    key: int,
    out: Tensor,  # uint8, the message
    spans: Tensor | None = None,  # float32 [R], takes largest minus smallest of each row
) -> int:
    """Writes a message; returns the first row with a value that is not finite (the message is void then), or -1."""
    require(x.dim() == 2 and x.dtype == torch.float32, f"rows must be float32 [N, D], but are {x.dtype}")
    rows = x.shape[0] if index is None else index.numel()
    if index is not None:
        check_index("index", index, x.shape[0])
    _check_layout(rows, bits, offsets)
    check_shape("ids", ids, (rows,), torch.int64)
    check_state("out", out, tuple(out.shape), torch.uint8)
    if spans is not None:
        check_state("spans", spans, (rows,), torch.float32)
    if rows == 0 or x.shape[1] == 0:
        return -1
    index = None if index is None else index.long().contiguous()
    return kernel(reference.pack, x)(x.contiguous(), index, bits, offsets, ids.contiguous(), key, out, spans)


def unpack(
    message: Tensor,  # uint8
    bits: Tensor,
    offsets: Tensor,
    into: Tensor,  # float32 [N, D]
    index: Tensor | None = None,  # int64 [R], rows of `into`, none of them twice; None: all
    add: bool = False,
) -> Tensor:
    """The rows of a message, written to `into` or added there."""
    check_state("into", into, tuple(into.shape), torch.float32)
    rows = into.shape[0] if index is None else index.numel()
    if index is not None:
        check_index("index", index, into.shape[0])
    _check_layout(rows, bits, offsets)
    check_state("message", message, tuple(message.shape), torch.uint8)
    if rows == 0 or into.shape[1] == 0:
        return into
    index = None if index is None else index.long().contiguous()
    return kernel(reference.unpack, into)(message, bits, offsets, into, index, add)


def _check_layout(rows: int, bits: Tensor, offsets: Tensor) -> None:
    check_state("bits", bits, (rows,), torch.uint8)
    check_state("offsets", offsets, (rows,), torch.int64)
