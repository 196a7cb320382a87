"""Largest messages per column with the number of edges that attain them, and the way back."""

import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.arguments import Cut
from weft.kernels.triton.device import item_of
from weft.kernels.triton.launching import MOST_COLUMNS, launch, pieces_of, sum_type, tile_for
from weft.kernels.triton.rows import add_pieces


def max_absorb(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    count: Tensor,
    cut: Cut | None = None,
) -> None:
    num_rows, width = out.shape
    pieces, tile = pieces_of(cut), tile_for(width, MOST_COLUMNS)
    best, ties = pieces.partial(width, x, out.dtype), pieces.partial(width, x, count.dtype)
    blocks = triton.cdiv(width, tile.columns)
    launch(
        _absorb, (pieces.items(num_rows), blocks), indptr, indices, x, weight, out, count, best, ties,
        *pieces.kernel_args(), width, num_warps=tile.warps, BLOCK_E=tile.edges, BLOCK_D=tile.columns,
        SUM=sum_type(out.dtype),
    )  # fmt: skip
    if best is not None:
        launch(
            _merge, (pieces.num_long, blocks), best, ties, pieces.long_rows, pieces.first, out, count, width,
            num_warps=tile.warps, BLOCK_D=tile.columns,
        )  # fmt: skip


def max_backward(
    indptr_t: Tensor,
    indices_t: Tensor,
    x: Tensor,
    weight_t: Tensor | None,
    out: Tensor,
    grad_share: Tensor,
    dx: Tensor,
    cut_t: Cut | None = None,
) -> None:
    num_rows, width = dx.shape
    pieces, tile = pieces_of(cut_t), tile_for(width, MOST_COLUMNS)
    partial = pieces.partial(width, x, dx.dtype)
    launch(
        _backward, (pieces.items(num_rows), triton.cdiv(width, tile.columns)), indptr_t, indices_t, x, weight_t, out,
        grad_share, dx, partial, *pieces.kernel_args(), width, num_warps=tile.warps, BLOCK_E=tile.edges,
        BLOCK_D=tile.columns, SUM=sum_type(dx.dtype),
    )  # fmt: skip
    add_pieces(pieces, partial, dx)


@triton.jit(do_not_specialize=["num_pieces", "piece_edges"])
def _absorb(
    indptr, indices, x, weight, out, count, best, ties, piece_row, piece_begin, num_pieces, piece_edges, width,
    BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < width
    row, begin, end, is_piece, _ = item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges)
    known = columns < tl.where(is_piece, 0, width)
    places = row * width + columns
    largest = tl.load(out + places, mask=known, other=float("-inf"))
    number = tl.load(count + places, mask=known, other=0)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        there = edges < end
        sources = tl.load(indices + edges, mask=there, other=0).to(tl.int64)
        mask = there[:, None] & inside[None, :]
        tile = tl.load(x + sources[:, None] * width + columns[None, :], mask=mask, other=0.0).to(SUM)
        if weight is not None:
            tile = tile * tl.load(weight + edges, mask=there, other=0.0)[:, None]
        tile = tl.where(there[:, None], tile, float("-inf"))
        found = tl.maximum(largest, tl.max(tile, axis=0))
        attained = (tile == found[None, :]) & there[:, None]
        number = tl.where(found > largest, 0, number) + tl.sum(attained.to(tl.int32), axis=0)
        largest = found
    if is_piece:
        if best is not None:
            own = item.to(tl.int64) * width + columns
            tl.store(best + own, largest, mask=inside)
            tl.store(ties + own, number, mask=inside)
    else:
        touched = columns < tl.where(end > begin, width, 0)
        tl.store(out + places, largest, mask=touched)
        tl.store(count + places, number, mask=touched)


@triton.jit
def _merge(best, ties, long_rows, first_piece, out, count, width, BLOCK_D: tl.constexpr):
    hub = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < width
    places = tl.load(long_rows + hub) * width + columns
    largest = tl.load(out + places, mask=inside, other=0.0)
    number = tl.load(count + places, mask=inside, other=0)
    for piece in range(tl.load(first_piece + hub), tl.load(first_piece + hub + 1)):
        value = tl.load(best + piece * width + columns, mask=inside, other=0.0)
        more = tl.load(ties + piece * width + columns, mask=inside, other=0)
        found = tl.maximum(largest, value)
        number = tl.where(found > largest, 0, number) + tl.where(value == found, more, 0)
        largest = found
    tl.store(out + places, largest, mask=inside)
    tl.store(count + places, number, mask=inside)


@triton.jit(do_not_specialize=["num_pieces", "piece_edges"])
def _backward(
    indptr_t, indices_t, x, weight_t, out, grad_share, dx, partial, piece_row, piece_begin, num_pieces, piece_edges,
    width, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < width
    row, begin, end, is_piece, _ = item_of(item, indptr_t, piece_row, piece_begin, num_pieces, piece_edges)
    own = tl.load(x + row * width + columns, mask=inside, other=0.0).to(SUM)
    total = tl.zeros([BLOCK_D], dtype=SUM)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        there = edges < end
        targets = tl.load(indices_t + edges, mask=there, other=0).to(tl.int64)
        places = targets[:, None] * width + columns[None, :]
        mask = there[:, None] & inside[None, :]
        share = tl.load(grad_share + places, mask=mask, other=0.0)
        largest = tl.load(out + places, mask=mask, other=0.0)
        message = tl.broadcast_to(own[None, :], [BLOCK_E, BLOCK_D])
        if weight_t is not None:
            factor = tl.load(weight_t + edges, mask=there, other=0.0)[:, None]
            message = message * factor
            share = share * factor
        total += tl.sum(tl.where((message == largest) & mask, share, 0.0), axis=0)
    if is_piece:
        if partial is not None:
            tl.store(partial + item.to(tl.int64) * width + columns, total, mask=inside)
    else:
        places = dx + row * width + columns
        mask = columns < tl.where(end > begin, width, 0)
        tl.store(places, tl.load(places, mask=mask, other=0.0) + total, mask=mask)
