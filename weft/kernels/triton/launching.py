"""Launches, tiles, and what every kernel in Triton is given alike."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.arguments import Cut, Dropout, accumulator_dtype
from weft.kernels.hash import MASK64

SUMS = {torch.float32: tl.float32, torch.float64: tl.float64}
UNCUT = 1 << 62  # edges a piece where rows are not cut
TILE_ELEMENTS = 2048  # of a tile of gathered rows, over all threads of a program
MOST_EDGES = 32  # of a tile
MOST_COLUMNS = 256  # of a tile where columns may be split over programs


def launch(kernel: Any, programs: tuple[int, ...], *args: object, num_warps: int = 4, **constants: Any) -> None:
    """Runs so many programs of a kernel; no program, no launch. EXACT: a product and a sum are not fused into one."""
    if 0 not in programs:
        run(kernel, programs, args, num_warps, constants)


def run(
    kernel: Any, programs: tuple[int, ...], args: tuple[object, ...], num_warps: int, constants: dict[str, Any]
) -> None:
    kernel[programs](*args, num_warps=num_warps, enable_fp_fusion=not constants.pop("EXACT", False), **constants)


class Tile(NamedTuple):
    """How many edges and columns a program takes at a time, both powers of two, and its warps."""

    edges: int
    columns: int
    warps: int


def tile_for(width: int, most_columns: int | None = None) -> Tile:
    columns = triton.next_power_of_2(max(width, 1))
    columns = columns if most_columns is None else min(columns, most_columns)
    edges = min(MOST_EDGES, max(1, TILE_ELEMENTS // columns))
    return Tile(edges, columns, warps_for(edges * columns))


def warps_for(elements: int) -> int:
    """Some 16 elements a thread, in 1 to 8 warps."""
    return int(min(8, max(1, triton.next_power_of_2(elements) // 512)))


def sum_type(dtype: torch.dtype) -> Any:
    """The type in which rows of `dtype` are summed."""
    return SUMS[accumulator_dtype(dtype)]


class Pieces(NamedTuple):
    """A `Cut` as launches take it."""

    row: Tensor | None
    begin: Tensor | None
    number: int
    edges: int
    long_rows: Tensor | None
    first: Tensor | None
    num_long: int

    def kernel_args(self) -> tuple[object, ...]:
        """What `item_of` reads."""
        return self.row, self.begin, self.number, self.edges

    def items(self, num_rows: int) -> int:
        """Pieces, then rows: the programs (of each head or block of columns) of a launch."""
        return self.number + num_rows

    def partial(self, width: int, like: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Room for what each piece sums up."""
        return like.new_empty((self.number, width), dtype=dtype) if self.number else None


def pieces_of(cut: Cut | None) -> Pieces:
    if cut is None or not cut.long_rows.numel():
        return Pieces(None, None, 0, UNCUT if cut is None else cut.edges_per_piece, None, None, 0)
    count, num_long = cut.piece_row.numel(), cut.long_rows.numel()
    return Pieces(cut.piece_row, cut.piece_begin, count, cut.edges_per_piece, cut.long_rows, cut.first_piece, num_long)


class Drop(NamedTuple):
    """Dropout of attention coefficients as kernels take it; nothing is dropped where ids are None."""

    dst_ids: Tensor | None
    src_ids: Tensor | None
    key: int
    threshold: int  # hashes from here on are kept, [0, 2^32)

    def kernel_args(self) -> tuple[object, ...]:
        return self.dst_ids, self.src_ids, self.key, self.threshold


def drop_of(dropout: Dropout | None) -> tuple[Drop, float]:
    """And by what kept coefficients are multiplied."""
    if dropout is None:
        return Drop(None, None, 0, 0), 1.0
    p, key, dst_ids, src_ids = dropout
    return Drop(dst_ids, src_ids, as_signed(key), int(p * 2**32)), 1.0 / (1.0 - p)


def as_signed(key: int) -> int:
    """A key of 64 bits as the kernels take it, whichever sign it comes with."""
    key &= MASK64
    return key - (1 << 64) if key >> 63 else key
