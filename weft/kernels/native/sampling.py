"""Sampled in-edges, vertices numbered in the order in which they appear, and rows gathered from where they lie."""

from collections.abc import Callable

import torch
from torch import Tensor

from weft.kernels import _native, memory
from weft.kernels.arguments import METHODS, FirstEdges, InEdges, Method, Sampled, SideEdges
from weft.kernels.native.pointers import pointer, threads

MERGED_ROWS = 1 << 20  # at a time


def sample(
    edges: InEdges,
    rows: Tensor,
    bounds: Tensor,
    keys: Tensor,
    fanout: int,
    method: Method = "neighbour",
    positions: bool = False,
    first: FirstEdges | None = None,
) -> Sampled:
    indptr_in, indices_in, weight, row_ids, col_ids = edges
    graph = pointer(indptr_in), pointer(indices_in), pointer(weight), pointer(row_ids), pointer(col_ids)
    draw = pointer(rows), pointer(bounds), pointer(keys), keys.numel(), fanout, METHODS.index(method)
    prefixes = (0, 0) if first is None else (pointer(first.degrees), pointer(first.salts))
    begins = memory.empty((rows.numel(),), torch.int64)
    degrees = memory.empty((rows.numel(),), torch.int32)
    indptr = memory.empty((rows.numel() + 1,), torch.int64)
    intervals = memory.empty((rows.numel(),), torch.float64) if method == "weighted" else None
    counted = pointer(begins), pointer(degrees), pointer(indptr), pointer(intervals)
    _native.count_sampled(graph, *draw, prefixes, *counted, threads())
    count = int(indptr[-1])
    columns = memory.empty((count,), torch.int32)
    where = memory.empty((count,), torch.int64) if positions else None
    _native.fill_sampled(graph, *draw, prefixes, *counted, pointer(columns), pointer(where), threads())
    return Sampled(degrees, indptr, columns, where, intervals)


def merge_sides(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    first_columns: int,
    ids: Tensor,
    order: bool = False,
    after_piece: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = first[0].numel() - 1
    indptr = first[0] + second[0]
    count = first[1].numel() + second[1].numel()
    indices = torch.empty(count, dtype=torch.int32)
    stood = torch.empty(count, dtype=torch.int64) if order else None
    sides = pointer(first[0]), pointer(first[1]), pointer(second[0]), pointer(second[1])
    for begin in range(0, rows, MERGED_ROWS):
        _native.merge_sides(
            *sides, begin, min(begin + MERGED_ROWS, rows), first[1].numel(), first_columns,
            pointer(ids), pointer(indices), pointer(stood), threads(),
        )  # fmt: skip
        if after_piece is not None:
            after_piece()
    return indptr, indices, stood


def number_new(table: Tensor, nodes: Tensor, known: int, ends: Tensor) -> tuple[int, Tensor]:
    columns = memory.empty((ends.numel(),), torch.int32)
    count = _native.number_new(pointer(table), pointer(nodes), known, pointer(ends), ends.numel(), pointer(columns))
    return count, columns


def number_known(table: Tensor, nodes: Tensor) -> None:
    _native.number_known(pointer(table), pointer(nodes), nodes.numel())


def forget(table: Tensor, nodes: Tensor) -> None:
    _native.forget(pointer(table), pointer(nodes), nodes.numel())


def find_slots(
    table: Tensor, nodes: Tensor, own: range, slots: int, stamp: int, fetched: Tensor
) -> tuple[Tensor, int, int]:
    where = memory.empty((nodes.numel(),), torch.int32)
    new, stamped = _native.find_slots(
        pointer(table), pointer(nodes), nodes.numel(), own.start, own.stop, slots, stamp, pointer(where),
        pointer(fetched),
    )  # fmt: skip
    return where, new, stamped


def gather_places(own: Tensor, cached: Tensor, fetched: Tensor, where: Tensor) -> Tensor:
    out = memory.empty((where.numel(), *own.shape[1:]), own.dtype)
    row_bytes = out[:1].numel() * out.element_size() if out.numel() else 0
    _native.gather_places(
        pointer(own), len(own), pointer(cached), len(cached), pointer(fetched), pointer(where), where.numel(),
        row_bytes, pointer(out), threads(),
    )  # fmt: skip
    return out


def with_loops(
    indptr: Tensor, indices: Tensor, weight: Tensor | None, loop_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = indptr.numel() - 1
    room = indices.numel() + rows
    out_indptr = torch.empty(rows + 1, dtype=torch.int64)
    out_indices = memory.empty((room,), torch.int32)
    weighted = weight is not None or loop_weight is not None
    out_weight = memory.empty((room,), torch.float64) if weighted else None
    count = _native.with_loops(
        pointer(indptr), pointer(indices), pointer(weight), pointer(loop_weight), rows, pointer(out_indptr),
        pointer(out_indices), pointer(out_weight),
    )  # fmt: skip
    return out_indptr, out_indices[:count], None if out_weight is None else out_weight[:count]


def split_columns(indptr: Tensor, indices: Tensor, border: int, stood: bool) -> tuple[SideEdges, SideEdges]:
    room = indices.numel() + 1
    before, after = (_empty_side(indptr, room, stood) for _ in range(2))
    _native.split_columns(
        pointer(indptr), pointer(indices), indptr.numel() - 1, border,
        (pointer(before.indptr), pointer(before.indices), pointer(before.stood)),
        (pointer(after.indptr), pointer(after.indices), pointer(after.stood)),
    )  # fmt: skip
    return _cut_side(before), _cut_side(after)


def _empty_side(indptr: Tensor, room: int, stood: bool) -> SideEdges:
    where = memory.empty((room,), torch.int64) if stood else None
    return SideEdges(torch.empty_like(indptr), memory.empty((room,), torch.int32), where)


def _cut_side(side: SideEdges) -> SideEdges:
    count = int(side.indptr[-1])
    return SideEdges(side.indptr, side.indices[:count], None if side.stood is None else side.stood[:count])
