"""Sampled in-edges, vertices numbered in the order in which they appear, and rows gathered from where they lie."""

from collections.abc import Callable

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.arguments import METHODS, FirstEdges, InEdges, Method, Sampled, SideEdges
from weft.kernels.backends import kernel
from weft.kernels.checks import check_csr, check_index, check_shape, check_state, require, trust_csr

__all__ = [
    "METHODS",
    "FirstEdges",
    "InEdges",
    "Method",
    "Sampled",
    "SideEdges",
    "find_slots",
    "forget",
    "gather_places",
    "merge_sides",
    "number_known",
    "number_new",
    "sample",
    "split_columns",
    "with_loops",
]


def sample(
    edges: InEdges,
    rows: Tensor,  # int32 [R], several minibatches' one after another
    bounds: Tensor,  # int64 [K + 1], where each minibatch begins
    keys: Tensor,  # int64 [K], of each minibatch
    fanout: int,  # negative: all
    method: Method = "neighbour",
    positions: bool = False,
    first: FirstEdges | None = None,  # None: all in-edges of a row are drawn from
) -> Sampled:
    """In-edges of each row: all, or where there are more than `fanout`, a draw of them.

    "neighbour" takes `fanout` of them, each subset alike. "weighted" takes `fanout` distinct ones too, an edge of
    weight w with probability min(1, w / interval), each row's interval being such that these add up to `fanout`; an
    edge without a positive weight never. "labor" takes each with probability fanout / degree by a draw that belongs to
    the source, so that rows choose alike. "last" takes the last `fanout` of each row.
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
    if first is not None:
        check_shape("degrees", first.degrees, rows.shape, torch.int32)
        check_shape("salts", first.salts, rows.shape, torch.int64)
        row = rows.long()
        all_of_them = edges.indptr[row + 1] - edges.indptr[row]
        inside = bool(((first.degrees >= 0) & (first.degrees <= all_of_them)).all())
        require(inside, "degrees must be from 0 to the number of each row's in-edges")
    found = kernel(reference.sample, rows)(edges, rows, bounds, keys, fanout, method, positions, first)
    trust_csr(found.indptr, found.columns, edges.col_ids.numel())
    return found


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
    run = kernel(reference.merge_sides, ids)
    indptr, indices, stood = run(first, second, first_columns, ids, order, after_piece)
    trust_csr(indptr, indices, ids.numel())
    return indptr, indices, stood


def number_new(table: Tensor, nodes: Tensor, known: int, ends: Tensor) -> tuple[int, Tensor]:
    """Numbers the vertices of `ends` int32 [S]; those that are new follow the first `known` of `nodes`.

    `table` int32 has each vertex's number, negative where it has none; `nodes` int32 has room for known + S + 1.
    Returns how many have a number now, and each end's, int32 [S].
    """
    check_index("ends", ends, table.numel())
    require(nodes.numel() > known + ends.numel(), "nodes has no room for what may come")
    return kernel(reference.number_new, ends)(table, nodes, known, ends.contiguous())


def number_known(table: Tensor, nodes: Tensor) -> None:
    """Vertices get their place in `nodes` as their number."""
    check_index("nodes", nodes, table.numel())
    kernel(reference.number_known, nodes)(table, nodes)


def forget(table: Tensor, nodes: Tensor) -> None:
    """Vertices have no number any more."""
    check_index("nodes", nodes, table.numel())
    kernel(reference.forget, nodes)(table, nodes)


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
    return kernel(reference.find_slots, nodes)(table, nodes, own, slots, stamp, fetched)


def gather_places(own: Tensor, cached: Tensor, fetched: Tensor, where: Tensor) -> Tensor:
    """Rows of three matrices, numbered through: first those of `own`, then of `cached`, then of `fetched`."""
    check_index("where", where, len(own) + len(cached) + len(fetched))
    require(own.dtype == cached.dtype == fetched.dtype, "all places must hold rows of one dtype")
    require(all(place.is_contiguous() for place in (own, cached, fetched)), "rows must be contiguous")
    return kernel(reference.gather_places, where)(own, cached, fetched, where)


def with_loops(
    indptr: Tensor, indices: Tensor, weight: Tensor | None, loop_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A loop first in every row; edges from a row to itself are left out. Weights (float64) are 1 unless given."""
    return kernel(reference.with_loops, indices)(indptr, indices, weight, loop_weight)


def split_columns(indptr: Tensor, indices: Tensor, border: int, stood: bool) -> tuple[SideEdges, SideEdges]:
    """Edges from the columns before a border, and from those after it, which are counted from there."""
    return kernel(reference.split_columns, indices)(indptr, indices, border, stood)
