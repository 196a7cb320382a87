"""Sums over in-edges, and rows moved by index."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.arguments import Cut, accumulator_dtype
from weft.kernels.triton.device import item_of
from weft.kernels.triton.launching import MOST_COLUMNS, Pieces, launch, pieces_of, sum_type, tile_for, warps_for


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    row_scale: Tensor | None = None,
    col_scale: Tensor | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    num_rows, width = indptr.numel() - 1, x.shape[1]
    if out is None:
        out = x.new_empty(num_rows, width)
    pieces, tile = pieces_of(cut), tile_for(width, MOST_COLUMNS)
    partial = pieces.partial(width, x, accumulator_dtype(x.dtype))
    launch(
        _sum_rows, (pieces.items(num_rows), triton.cdiv(width, tile.columns)), indptr, indices, x, weight, row_scale,
        col_scale, out, partial, *pieces.kernel_args(), width, num_warps=tile.warps, ACCUMULATE=accumulate,
        BLOCK_E=tile.edges, BLOCK_D=tile.columns, SUM=sum_type(x.dtype),
    )  # fmt: skip
    add_pieces(pieces, partial, out, row_scale, accumulate)
    return out


def add_pieces(
    pieces: Pieces, partial: Tensor | None, out: Tensor, row_scale: Tensor | None = None, accumulate: bool = True
) -> None:
    """Writes the sums of long rows: those of their pieces, in their order."""
    if partial is None:
        return
    width, tile = out.shape[1], tile_for(out.shape[1], MOST_COLUMNS)
    launch(
        _add_pieces, (pieces.num_long, triton.cdiv(width, tile.columns)), partial, pieces.long_rows, pieces.first,
        row_scale, out, width, num_warps=tile.warps, ACCUMULATE=accumulate, BLOCK_P=tile.edges, BLOCK_D=tile.columns,
        SUM=sum_type(partial.dtype),
    )  # fmt: skip


def gather(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = x.new_empty((index.numel(), *x.shape[1:]))
    width = out[:1].numel() if index.numel() else 0
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    tile = tile_for(width, MOST_COLUMNS)
    launch(
        _gather, (triton.cdiv(index.numel(), tile.edges), triton.cdiv(width, tile.columns)), x.view(whole), index,
        out.view(whole), index.numel(), width, num_warps=tile.warps, BLOCK_R=tile.edges, BLOCK_D=tile.columns,
    )  # fmt: skip
    return out


def scatter_add(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """The rows of each place of `out` are its in-edges, in the order in which they come."""
    ascending, order = torch.sort(index, stable=True)
    places = torch.arange(out.shape[0] + 1, device=index.device, dtype=index.dtype)
    indptr = torch.searchsorted(ascending, places)
    width, tile = out.shape[1], tile_for(out.shape[1], MOST_COLUMNS)
    launch(
        _sum_rows, (out.shape[0], triton.cdiv(width, tile.columns)), indptr, order, rows, None, None, None, out, None,
        *pieces_of(None).kernel_args(), width, num_warps=tile.warps, ACCUMULATE=True, BLOCK_E=tile.edges,
        BLOCK_D=tile.columns, SUM=sum_type(out.dtype),
    )  # fmt: skip
    return out


def add_segments(indptr: Tensor, values: Tensor, out: Tensor, pieces: Pieces) -> None:
    """out[i] += the sum of the values [E, H] of row i's edges, which lie one after the other."""
    width = values.shape[1]
    columns = triton.next_power_of_2(width)
    edges = max(1, 512 // columns)
    partial = pieces.partial(width, values, values.dtype)
    launch(
        _sum_segments, (pieces.items(out.shape[0]),), indptr, values, out, partial, *pieces.kernel_args(), width,
        num_warps=warps_for(edges * columns), BLOCK_E=edges, BLOCK_D=columns, SUM=sum_type(values.dtype),
    )  # fmt: skip
    add_pieces(pieces, partial, out)


@triton.jit(do_not_specialize=["num_pieces", "piece_edges"])
def _sum_rows(
    indptr, indices, x, weight, row_scale, col_scale, out, partial, piece_row, piece_begin, num_pieces, piece_edges,
    width, ACCUMULATE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < width
    row, begin, end, is_piece, is_whole = item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges)
    total = tl.zeros([BLOCK_D], dtype=SUM)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        there = edges < end
        sources = tl.load(indices + edges, mask=there, other=0).to(tl.int64)
        places = x + sources[:, None] * width + columns[None, :]
        tile = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0).to(SUM)
        if weight is not None:
            tile = tile * tl.load(weight + edges, mask=there, other=0.0)[:, None]
        if col_scale is not None:
            tile = tile * tl.load(col_scale + sources, mask=there, other=0.0)[:, None]
        total += tl.sum(tile, axis=0)
    if is_piece:
        if partial is not None:
            tl.store(partial + item.to(tl.int64) * width + columns, total, mask=inside)
    else:
        _write(row, total, row_scale, out, tl.where(is_whole, width, 0), width, columns, end > begin, ACCUMULATE)


@triton.jit
def _write(row, total, row_scale, out, room, width, columns, touched, ACCUMULATE: tl.constexpr):
    """The first `room` columns of a row; where sums are added, a row that no edge touched stays as it is."""
    places = out + row * width + columns
    if ACCUMULATE:
        room = tl.where(touched, room, 0)
    inside = columns < room
    if row_scale is not None:
        total = total * tl.load(row_scale + row)
    if ACCUMULATE:
        total = total + tl.load(places, mask=inside, other=0.0).to(total.dtype)
    tl.store(places, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_pieces(
    partial, long_rows, first_piece, row_scale, out, width, ACCUMULATE: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < width
    row = tl.load(long_rows + number)
    begin, end = tl.load(first_piece + number), tl.load(first_piece + number + 1)
    total = tl.zeros([BLOCK_D], dtype=SUM)
    for first in range(begin, end, BLOCK_P):
        pieces = first + tl.arange(0, BLOCK_P)
        mask = (pieces < end)[:, None] & inside[None, :]
        total += tl.sum(tl.load(partial + pieces[:, None] * width + columns[None, :], mask=mask, other=0.0), axis=0)
    _write(row, total, row_scale, out, width, width, columns, end > begin, ACCUMULATE)


@triton.jit(do_not_specialize=["num_pieces", "piece_edges"])
def _sum_segments(
    indptr, values, out, partial, piece_row, piece_begin, num_pieces, piece_edges, width, BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < width
    row, begin, end, is_piece, is_whole = item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges)
    total = tl.zeros([BLOCK_D], dtype=SUM)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        mask = (edges < end)[:, None] & inside[None, :]
        total += tl.sum(tl.load(values + edges[:, None] * width + columns[None, :], mask=mask, other=0.0), axis=0)
    if is_piece:
        if partial is not None:
            tl.store(partial + item.to(tl.int64) * width + columns, total, mask=inside)
    else:
        _write(row, total, None, out, tl.where(is_whole, width, 0), width, columns, end > begin, True)


@triton.jit(do_not_specialize=["num_rows"])
def _gather(x, index, out, num_rows, width, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    there = rows < num_rows
    sources = tl.load(index + rows, mask=there, other=0).to(tl.int64)
    mask = there[:, None] & (columns < width)[None, :]
    values = tl.load(x + sources[:, None] * width + columns[None, :], mask=mask)
    tl.store(out + rows[:, None] * width + columns[None, :], values, mask=mask)
