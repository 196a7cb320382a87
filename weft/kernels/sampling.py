"""Sampled in-edges, vertices numbered in the order in which they appear, and rows gathered from where they lie."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from weft.kernels import memory
from weft.kernels import reference_sampling as reference
from weft.kernels.checks import check_csr, check_index, check_shape, check_state, require, trust_csr
from weft.kernels.native import native_for, pointer, threads

Method = Literal["neighbour", "weighted", "labor"]
METHODS: tuple[Method, ...] = ("neighbour", "weighted", "labor")
MERGED_ROWS = 1 << 20  # at a time


class InEdges(NamedTuple):
    """The in-edges of some rows, with the global ids by which draws are keyed."""

    indptr: Tensor  # int64 [N + 1]
    indices: Tensor  # int32 [E], columns
    weight: Tensor | None  # float32 [E]
    row_ids: Tensor  # int64 [N]
    col_ids: Tensor  # int64 [M]


class Sampled(NamedTuple):
    degrees: Tensor  # int32 [R], of how many edges each row's were drawn
    indptr: Tensor  # int64 [R + 1]
    columns: Tensor  # int32 [S]
    positions: Tensor | None  # int64 [S], where each edge stands among all


def sample(
    edges: InEdges,
    rows: Tensor,  # int32 [R], several minibatches' one after another
    bounds: Tensor,  # int64 [K + 1], where each minibatch begins
    keys: Tensor,  # int64 [K], of each minibatch
    fanout: int,  # negative: all
    method: Method = "neighbour",
    positions: bool = False,
) -> Sampled:
    """In-edges of each row: all, or where there are more than `fanout`, a draw of them.

    "neighbour" takes `fanout` of them, each subset alike; "weighted" too, in proportion to their weights; "labor"
    takes each with probability fanout / degree by a draw that belongs to the source, so that rows choose alike.
    """
    check_csr(edges.indptr, edges.indices, edges.col_ids.numel())
    check_index("rows", rows, edges.indptr.numel() - 1)
    check_shape("row_ids", edges.row_ids, (edges.indptr.numel() - 1,), torch.int64)
    require(rows.dtype == torch.int32 and rows.is_contiguous(), "rows must be int32 and contiguous")
    require(int(bounds[0]) == 0 and int(bounds[-1]) == rows.numel(), "bounds must run from 0 to the number of rows")
    check_shape("keys", keys, (bounds.numel() - 1,), torch.int64)
    require(method != "weighted" or edges.weight is not None, "weighted draws need weights")
    if edges.weight is not None:
        check_state("weight", edges.weight, (edges.indices.numel(),), torch.float32)
    native = native_for(rows)
    if native is None:
        return reference.sample(edges, rows, bounds, keys, fanout, method, positions)
    graph = tuple(pointer(tensor) for tensor in edges)
    draw = (pointer(rows), pointer(bounds), pointer(keys), keys.numel(), fanout, METHODS.index(method))
    begins = memory.empty((rows.numel(),), torch.int64)
    degrees = memory.empty((rows.numel(),), torch.int32)
    indptr = memory.empty((rows.numel() + 1,), torch.int64)
    counted = (pointer(begins), pointer(degrees), pointer(indptr))
    native.count_sampled(graph, *draw, *counted, threads())
    count = int(indptr[-1])
    columns = memory.empty((count,), torch.int32)
    where = memory.empty((count,), torch.int64) if positions else None
    native.fill_sampled(graph, *draw, *counted, pointer(columns), pointer(where), threads())
    trust_csr(indptr, columns, edges.col_ids.numel())
    return Sampled(degrees, indptr, columns, where)


def merge_sides(
    first: tuple[Tensor, Tensor],  # indptr int64 [N + 1], indices int32
    second: tuple[Tensor, Tensor],
    first_columns: int,
    ids: Tensor,  # int64, of the first side's columns and then of the second's
    order: bool = False,
    after_piece: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Two sides' edges row by row, ascending by the id of their source as they do on either side.

    The second side's columns are counted on from the first's. With `order`, also where each edge stood, the second
    side's after the first's, int64. `after_piece` is called now and then, for what becomes of edges that were read.
    """
    rows = first[0].numel() - 1
    check_csr(*first, first_columns)
    check_csr(*second, ids.numel() - first_columns)
    require(second[0].numel() == rows + 1, "both sides must have the same rows")
    native = native_for(ids)
    if native is None:
        return reference.merge_sides(first, second, first_columns, ids, order)
    indptr = first[0] + second[0]
    count = first[1].numel() + second[1].numel()
    indices = torch.empty(count, dtype=torch.int32)
    stood = torch.empty(count, dtype=torch.int64) if order else None
    sides = tuple(pointer(tensor) for tensor in (*first, *second))
    for begin in range(0, rows, MERGED_ROWS):
        native.merge_sides(
            *sides, begin, min(begin + MERGED_ROWS, rows), first[1].numel(), first_columns,
            pointer(ids), pointer(indices), pointer(stood), threads(),
        )  # fmt: skip
        if after_piece is not None:
            after_piece()
    trust_csr(indptr, indices, ids.numel())
    return indptr, indices, stood


def number_new(table: Tensor, nodes: Tensor, known: int, ends: Tensor) -> tuple[int, Tensor]:
    """Numbers the vertices of `ends` int32 [S]; those that are new follow the first `known` of `nodes`.

    `table` int32 has each vertex's number, negative where it has none; `nodes` int32 has room for known + S + 1.
    Returns how many have a number now, and each end's, int32 [S].
    """
    check_index("ends", ends, table.numel())
    require(nodes.numel() > known + ends.numel(), "nodes has no room for what may come")
    native = native_for(ends)
    if native is None:
        return reference.number_new(table, nodes, known, ends)
    columns = memory.empty((ends.numel(),), torch.int32)
    ends = ends.contiguous()
    count = native.number_new(pointer(table), pointer(nodes), known, pointer(ends), ends.numel(), pointer(columns))
    return count, columns


def number_known(table: Tensor, nodes: Tensor) -> None:
    """Vertices get their place in `nodes` as their number."""
    check_index("nodes", nodes, table.numel())
    native = native_for(nodes)
    if native is None:
        table[nodes.long()] = torch.arange(nodes.numel(), dtype=torch.int32)
    else:
        native.number_known(pointer(table), pointer(nodes), nodes.numel())


def forget(table: Tensor, nodes: Tensor) -> None:
    """Vertices have no number any more."""
    check_index("nodes", nodes, table.numel())
    native = native_for(nodes)
    if native is None:
        table[nodes.long()] = -1
    else:
        native.forget(pointer(table), pointer(nodes), nodes.numel())


def find_slots(
    table: Tensor, nodes: Tensor, own: range, slots: int, stamp: int, fetched: Tensor
) -> tuple[Tensor, int, int]:
    """Where the rows of some vertices are: own ones first, then by slot, for which `table` has or gets an entry.

    New slots count from `slots`; who got one is written to `fetched`, which has room for all. Own vertices are stamped
    with a negative number. Returns the place of every vertex, int32, how many slots are new, and how many own vertices
    had another stamp before.
    """
    check_index("nodes", nodes, table.numel())
    require(fetched.numel() >= nodes.numel(), "fetched has no room for what may come")
    native = native_for(nodes)
    if native is None:
        return reference.find_slots(table, nodes, own, slots, stamp, fetched)
    where = memory.empty((nodes.numel(),), torch.int32)
    new, stamped = native.find_slots(
        pointer(table), pointer(nodes), nodes.numel(), own.start, own.stop, slots, stamp, pointer(where),
        pointer(fetched),
    )  # fmt: skip
    return where, new, stamped


def gather_places(own: Tensor, cached: Tensor, fetched: Tensor, where: Tensor) -> Tensor:
    """Rows of three matrices, numbered through: first those of `own`, then of `cached`, then of `fetched`."""
    check_index("where", where, len(own) + len(cached) + len(fetched))
    require(own.dtype == cached.dtype == fetched.dtype, "all places must hold rows of one dtype")
    native = native_for(where)
    if native is None:
        return reference.gather_places(own, cached, fetched, where)
    require(all(place.is_contiguous() for place in (own, cached, fetched)), "rows must be contiguous")
    out = memory.empty((where.numel(), *own.shape[1:]), own.dtype)
    row_bytes = out[:1].numel() * out.element_size() if out.numel() else 0
    native.gather_places(
        pointer(own), len(own), pointer(cached), len(cached), pointer(fetched), pointer(where), where.numel(),
        row_bytes, pointer(out), threads(),
    )  # fmt: skip
    return out


def with_loops(
    indptr: Tensor, indices: Tensor, weight: Tensor | None, loop_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A loop first in every row; edges from a row to itself are left out. Weights (float64) are 1 unless given."""
    rows = indptr.numel() - 1
    native = native_for(indices)
    if native is None:
        return reference.with_loops(indptr, indices, weight, loop_weight)
    room = indices.numel() + rows
    out_indptr = torch.empty(rows + 1, dtype=torch.int64)
    out_indices = memory.empty((room,), torch.int32)
    weighted = weight is not None or loop_weight is not None
    out_weight = memory.empty((room,), torch.float64) if weighted else None
    count = native.with_loops(
        pointer(indptr), pointer(indices), pointer(weight), pointer(loop_weight), rows, pointer(out_indptr),
        pointer(out_indices), pointer(out_weight),
    )  # fmt: skip
    return out_indptr, out_indices[:count], None if out_weight is None else out_weight[:count]


class SideEdges(NamedTuple):
    """Some edges of each row."""

    indptr: Tensor  # int64 [N + 1]
    indices: Tensor  # int32
    stood: Tensor | None  # int64, where each edge stood


def split_columns(indptr: Tensor, indices: Tensor, border: int, stood: bool) -> tuple[SideEdges, SideEdges]:
    """Edges from the columns before a border, and from those after it, which are counted from there."""
    native = native_for(indices)
    if native is None:
        return reference.split_columns(indptr, indices, border, stood)
    room = indices.numel() + 1
    sides = []
    for _ in range(2):
        where = memory.empty((room,), torch.int64) if stood else None
        sides.append(SideEdges(torch.empty_like(indptr), memory.empty((room,), torch.int32), where))
    native.split_columns(
        pointer(indptr), pointer(indices), indptr.numel() - 1, border, *(tuple(map(pointer, side)) for side in sides)
    )
    first, second = (_cut_side(side) for side in sides)
    return first, second


def _cut_side(side: SideEdges) -> SideEdges:
    count = int(side.indptr[-1])
    return SideEdges(side.indptr, side.indices[:count], None if side.stood is None else side.stood[:count])
