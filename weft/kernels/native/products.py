"""Matrix products that skip zeros where a few sampled rows say that it pays.

bf16 rows are multiplied in float32, some thousand at a time, on processors that have no units for them: that is several
times as fast.
"""

import functools

import torch
from torch import Tensor

from weft.kernels import _native, memory, reference
from weft.kernels.lists import Lists
from weft.kernels.native.pointers import pointer, threads

WORTH_SKIPPING = 0.55  # share of non-zeros below which lists of them beat a dense product
WORTH_LISTING = 1 / 16  # likewise, below which lists that are kept are much smaller than the rows
SAMPLED_ROWS = 256
_FEWEST = 1 << 16  # elements; smaller operands are not worth the look


def product(
    x: Tensor, matrix: Tensor, out: Tensor | None = None, accumulate: bool = False, lists: Lists | None = None
) -> Tensor:
    if out is None:
        out = memory.empty((x.shape[0], matrix.shape[1]), x.dtype)
    if _lacks_units(x):
        for rows in _chunks(x):
            wide = product(x[rows].float(), matrix.float())
            out[rows].add_(wide) if accumulate else out[rows].copy_(wide)
        return out
    if matrix.dtype != torch.float32 or (lists is None and not skips(x)):
        return reference.product(x, matrix, out, accumulate)
    _native.skip_product(
        pointer(x), x.shape[0], x.shape[1], x.stride(0), pointer(matrix), matrix.shape[1], matrix.stride(0),
        matrix.stride(1), pointer(out), out.stride(0), accumulate, threads(), _pointers(lists),
    )  # fmt: skip
    return out


def reduce_product(left: Tensor, right: Tensor, lists: Lists | None = None) -> Tensor:
    if _lacks_units(left) and right.dtype == left.dtype:
        shares = [reduce_product(left[rows].float(), right[rows].float()) for rows in _chunks(left)]
        return torch.stack(shares).sum(0).to(left.dtype)
    if left.dtype == right.dtype and right.stride(1) == 1 and skips(left):
        return _skip_reduce(left, right)
    if left.dtype == right.dtype and left.stride(1) == 1 and (lists is not None or skips(right)):
        return _skip_reduce(right, left, lists).t().contiguous()
    return reference.reduce_product(left, right)


def skips(x: Tensor) -> bool:
    """Whether a product with these rows is better done over their non-zeros."""
    if x.dtype != torch.float32 or x.numel() < _FEWEST or x.stride(1) != 1:
        return False
    return _native.density(pointer(x), x.shape[0], x.shape[1], x.stride(0), SAMPLED_ROWS) < WORTH_SKIPPING


def list_nonzeros(x: Tensor, by_column: bool) -> Lists | None:
    if x.dtype != torch.float32 or x.numel() < _FEWEST or x.stride(1) != 1:
        return None
    rows, width = x.shape
    if _native.density(pointer(x), rows, width, x.stride(0), rows) >= WORTH_LISTING:
        return None
    starts = torch.zeros(_native.num_lists(rows, width, by_column) + 1, dtype=torch.int64)
    shape = (pointer(x), rows, width, x.stride(0), by_column)
    _native.list_nonzeros(*shape, pointer(starts), 0, 0)
    starts = starts.cumsum(0)
    total = int(starts[-1])
    offsets, values = memory.empty((total,), torch.int32, x.device), memory.empty((total,), torch.float32, x.device)
    _native.list_nonzeros(*shape, pointer(starts), pointer(offsets), pointer(values))
    return Lists(starts, offsets, values, rows, by_column)


def _pointers(lists: Lists | None) -> tuple[int, int, int] | None:
    return None if lists is None else (pointer(lists.starts), pointer(lists.offsets), pointer(lists.values))


def _skip_reduce(left: Tensor, right: Tensor, lists: Lists | None = None) -> Tensor:
    out = torch.empty(left.shape[1], right.shape[1])
    _native.skip_reduce(
        pointer(left), left.shape[0], left.shape[1], left.stride(0), pointer(right), right.shape[1], right.stride(0),
        pointer(out), threads(), _pointers(lists),
    )  # fmt: skip
    return out


def _lacks_units(x: Tensor) -> bool:
    """Whether these are bf16 rows on a processor that has no units for them."""
    return x.dtype == torch.bfloat16 and x.shape[0] > 0 and not _has_bf16_units()


@functools.cache
def _has_bf16_units() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _chunks(x: Tensor, num_rows: int = 8192) -> list[slice]:
    """Rows that stay in cache while they are widened and multiplied."""
    return [slice(start, min(start + num_rows, x.shape[0])) for start in range(0, x.shape[0], num_rows)]
