"""Quantised rows in plain torch: every backend writes these bytes."""

import torch
from torch import Tensor

from weft.kernels.hash import GOLDEN, MASK32, shift_right, signed, splitmix64

HEADER_BYTES = 6
SMALLEST_STEP = 2.0**-100
DRAW_BITS = 13  # a step is cut into 2^13: with more, the largest draw could lead past the largest integer


def draws(ids: Tensor, width: int, key: int) -> Tensor:
    """DRAW_BITS random bits for each (id, column), int64 [R, D]: both ends of one hash for columns 16 apart."""
    row = splitmix64(ids * signed(GOLDEN) + signed(key))
    column = torch.arange(width, device=ids.device)
    v = ((row & MASK32)[:, None] + (column // 32 * 16 + column % 16) * 0x9E3779B9) & MASK32
    v = ((v ^ (v >> 16)) * 0x85EBCA6B) & MASK32
    v = ((v ^ (v >> 13)) * 0xC2B2AE35) & MASK32
    v = v ^ (v >> 16) ^ shift_right(row, 32)[:, None]
    return torch.where(column // 16 % 2 == 1, v >> (32 - DRAW_BITS), v & ((1 << DRAW_BITS) - 1))


def steps(spans: Tensor, most: Tensor) -> Tensor:
    """Step of each row as it travels: a bf16 that is not too small for its range, float32."""
    up = ((spans / most).view(torch.int32) + 0xFFFF) & -0x10000
    return torch.where(spans > 0, up.view(torch.float32).clamp(min=SMALLEST_STEP), 0.0)


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
    x = x if index is None else x[index]
    lo, hi = x.amin(1), x.amax(1)
    span = hi - lo
    bad = ~torch.isfinite(x).all(1) | ~torch.isfinite(span)
    if spans is not None:
        spans.copy_(span)
    most = (1 << bits.long()) - 1
    step = steps(span, most.float())
    factor = torch.where(step > 0, 2.0**DRAW_BITS / step, 0.0)
    raised = ((x - lo[:, None]) * factor[:, None]).round().to(torch.int64)
    q = (raised + draws(ids, x.shape[1], key)) >> DRAW_BITS
    short_step = (step.view(torch.int32) >> 16).to(torch.int16)
    header = torch.cat([t.contiguous().view(torch.uint8).view(len(t), -1) for t in (lo, short_step)], 1)
    for b in (2, 4, 8):
        rows = ((bits == b) & ~bad).nonzero().flatten()
        if rows.numel():
            data = torch.cat([header[rows], _fold(q[rows], b)], 1)
            place = offsets[rows, None] + torch.arange(data.shape[1], device=x.device)
            out[place.flatten()] = data.flatten()
    return int(bad.nonzero()[0]) if bool(bad.any()) else -1


def unpack(
    message: Tensor, bits: Tensor, offsets: Tensor, into: Tensor, index: Tensor | None = None, add: bool = False
) -> Tensor:
    width = into.shape[1]
    rows_of = torch.arange(bits.numel(), device=into.device) if index is None else index
    for b in (2, 4, 8):
        rows = (bits == b).nonzero().flatten()
        if not rows.numel():
            continue
        size = HEADER_BYTES + (width * b + 7) // 8
        data = message[offsets[rows, None] + torch.arange(size, device=into.device)]
        lo = data[:, :4].flatten().view(torch.float32)[:, None]
        step = (data[:, 4:6].flatten().view(torch.int16).to(torch.int32) << 16).view(torch.float32)[:, None]
        values = _unfold(data[:, HEADER_BYTES:], b, width).float() * step + lo
        if add:
            into[rows_of[rows]] += values
        else:
            into[rows_of[rows]] = values
    return into


def _columns(width: int, bits: int) -> tuple[Tensor, Tensor]:
    """Byte and lowest bit of every column of a packed row: tiles of eight words, then of eight bytes, then the rest."""
    byte, shift = torch.empty(width, dtype=torch.int64), torch.empty(width, dtype=torch.int64)
    start = first_byte = 0
    for word_bytes in (4, 1):
        tile = 8 * word_bytes * 8 // bits
        stop = start + (width - start) // tile * tile
        inside = torch.arange(stop - start) % tile
        bit = inside // 8 * bits  # in its word
        number = torch.arange(stop - start) // tile
        byte[start:stop] = first_byte + number * 8 * word_bytes + inside % 8 * word_bytes + bit // 8
        shift[start:stop] = bit % 8
        first_byte += (stop - start) * bits // 8
        start = stop
    rest = torch.arange(width - start) * bits
    byte[start:], shift[start:] = first_byte + rest // 8, rest % 8
    return byte, shift


def _fold(q: Tensor, bits: int) -> Tensor:
    byte, shift = (t.to(q.device) for t in _columns(q.shape[1], bits))
    out = torch.zeros(q.shape[0], (q.shape[1] * bits + 7) // 8, dtype=torch.int64, device=q.device)
    return out.index_add_(1, byte, q << shift).to(torch.uint8)


def _unfold(data: Tensor, bits: int, width: int) -> Tensor:
    byte, shift = (t.to(data.device) for t in _columns(width, bits))
    return (data[:, byte].long() >> shift) & ((1 << bits) - 1)
