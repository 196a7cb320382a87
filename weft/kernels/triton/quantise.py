"""Rows as integers of 2, 4 or 8 bits, a program a row; the bytes are those of the CPU's kernels.

So products and sums round where theirs do, and divisions are exact: EXACT keeps the compiler from fusing them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.reference.quantise import DRAW_BITS, HEADER_BYTES, SMALLEST_STEP
from weft.kernels.triton.device import mix, row_hash
from weft.kernels.triton.launching import as_signed, launch

MOST_COLUMNS = 1024  # of a tile

_DRAW = tl.constexpr(DRAW_BITS)
_DRAWS = tl.constexpr(1 << DRAW_BITS)
_HEADER = tl.constexpr(HEADER_BYTES)
_SMALLEST = tl.constexpr(SMALLEST_STEP)
_WHOLE = tl.constexpr(8388608.0)  # 2^23: adding and subtracting it rounds a float32 to the nearest integer


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
    rows, width = bits.numel(), x.shape[1]
    first_bad = torch.empty(rows, dtype=torch.int64, device=x.device)  # a row's number where it is bad, else `rows`
    block = min(MOST_COLUMNS, triton.next_power_of_2(width))
    launch(
        _pack, (rows,), x, index, bits, offsets, ids, as_signed(key), out, spans, first_bad, rows, width, EXACT=True,
        BLOCK=block,
    )  # fmt: skip
    found = int(first_bad.min())
    return -1 if found == rows else found


def unpack(
    message: Tensor, bits: Tensor, offsets: Tensor, into: Tensor, index: Tensor | None = None, add: bool = False
) -> Tensor:
    width = into.shape[1]
    block = min(MOST_COLUMNS, triton.next_power_of_2(width))
    launch(_unpack, (bits.numel(),), message, bits, offsets, into, index, width, EXACT=True, ADD=add, BLOCK=block)
    return into


@triton.jit
def _column_of(byte, place, bits, width):
    """The column whose integer is the place-th of a byte of a packed row.

    First come tiles of eight words, then of eight bytes, then the rest.
    """
    a_byte = 8 // bits  # columns
    in_words = width // (32 * a_byte) * 32  # bytes of whole tiles of eight words
    in_bytes = in_words + (width - in_words * a_byte) // (8 * a_byte) * 8
    in_word = byte % 32
    of_words = byte // 32 * 32 * a_byte + (in_word % 4 * a_byte + place) * 8 + in_word // 4
    of_bytes = in_words * a_byte + (byte - in_words) // 8 * 8 * a_byte + place * 8 + (byte - in_words) % 8
    rest = byte * a_byte + place
    return tl.where(byte < in_words, of_words, tl.where(byte < in_bytes, of_bytes, rest))


@triton.jit
def _place_of(column, bits, width):
    """Byte of a packed row and lowest bit in it of a column's integer."""
    a_byte = 8 // bits
    in_words = width // (32 * a_byte) * 32 * a_byte  # columns of whole tiles of eight words
    in_bytes = in_words + (width - in_words) // (8 * a_byte) * 8 * a_byte
    tile = 32 * a_byte
    bit = column % tile // 8 * bits
    word_byte = column // tile * 32 + column % 8 * 4 + bit // 8
    after = column - in_words
    byte_byte = in_words // a_byte + after // (8 * a_byte) * 8 + after % 8
    byte_bit = after % (8 * a_byte) // 8 * bits
    byte = tl.where(column < in_words, word_byte, tl.where(column < in_bytes, byte_byte, column // a_byte))
    shift = tl.where(column < in_words, bit % 8, tl.where(column < in_bytes, byte_bit, column % a_byte * bits))
    return byte, shift


@triton.jit
def _draws(hashes, columns):
    """DRAW_BITS random bits of each column: both ends of one hash for columns 16 apart."""
    v = mix(hashes, columns // 32 * 16 + columns % 16).to(tl.int64)
    return tl.where(columns // 16 % 2 == 1, v >> (32 - _DRAW), v & (_DRAWS - 1))


@triton.jit(do_not_specialize=["key", "num_rows"])
def _pack(
    x, index, bits, offsets, ids, key, out, spans, first_bad, num_rows, width, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    source = row
    if index is not None:
        source = tl.load(index + row)
    values = x + source * width
    lo, hi = tl.full([], float("inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    bad = tl.zeros([], tl.int32)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < width
        v = tl.load(values + columns, mask=inside, other=0.0)
        lo = tl.minimum(lo, tl.min(tl.where(inside, v, float("inf")), axis=0))
        hi = tl.maximum(hi, tl.max(tl.where(inside, v, float("-inf")), axis=0))
        bad += tl.sum((tl.abs(v) < float("inf")).to(tl.int32) ^ 1, axis=0)
    span = hi - lo
    bad += (span < float("inf")).to(tl.int32) ^ 1
    if spans is not None:
        tl.store(spans + row, span)
    tl.store(first_bad + row, tl.where(bad > 0, row, num_rows.to(tl.int64)))
    row_bits = tl.load(bits + row).to(tl.int32)
    most = ((1 << row_bits) - 1).to(tl.float32)
    up = (tl.math.div_rn(span, most).to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    step = tl.where(span > 0, tl.maximum(up.to(tl.float32, bitcast=True), _SMALLEST), 0.0)
    if bad == 0:
        target = out + tl.load(offsets + row)
        header = tl.arange(0, 4)
        tl.store(target + header, ((lo.to(tl.int32, bitcast=True) >> (header * 8)) & 0xFF).to(tl.uint8))
        half = tl.arange(0, 2)
        tl.store(target + 4 + half, ((step.to(tl.int32, bitcast=True) >> (16 + half * 8)) & 0xFF).to(tl.uint8))
        factor = tl.math.div_rn(tl.full([], _DRAWS, tl.float32), tl.where(step > 0, step, 1.0))
        factor = tl.where(step > 0, factor, 0.0)
        hashes = row_hash(tl.load(ids + row), key)
        num_bytes = (width * row_bits + 7) // 8
        for first in range(0, num_bytes, BLOCK):
            byte = first + tl.arange(0, BLOCK)
            packed = tl.zeros([BLOCK], tl.int32)
            for place in range(0, 8 // row_bits):
                column = _column_of(byte, place, row_bits, width)
                inside = (column < width) & (byte < num_bytes)
                v = tl.load(values + column, mask=inside, other=0.0)
                raised = ((v - lo) * factor + _WHOLE) - _WHOLE
                q = (raised.to(tl.int64) + _draws(hashes, column)) >> _DRAW
                packed |= tl.where(inside, q.to(tl.int32) << (place * row_bits), 0)
            tl.store(target + _HEADER + byte, packed.to(tl.uint8), mask=byte < num_bytes)


@triton.jit
def _unpack(message, bits, offsets, into, index, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    source = message + tl.load(offsets + row)
    row_bits = tl.load(bits + row).to(tl.int32)
    target = row
    if index is not None:
        target = tl.load(index + row)
    header = tl.arange(0, 4)
    lo = tl.sum(tl.load(source + header).to(tl.int32) << (header * 8), axis=0).to(tl.float32, bitcast=True)
    half = tl.arange(0, 2)
    step = tl.sum(tl.load(source + 4 + half).to(tl.int32) << (16 + half * 8), axis=0).to(tl.float32, bitcast=True)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < width
        byte, shift = _place_of(columns, row_bits, width)
        q = (tl.load(source + _HEADER + byte, mask=inside, other=0).to(tl.int32) >> shift) & ((1 << row_bits) - 1)
        value = q.to(tl.float32) * step + lo
        places = into + target * width + columns
        if ADD:
            value = tl.load(places, mask=inside, other=0.0) + value
        tl.store(places, value, mask=inside)
