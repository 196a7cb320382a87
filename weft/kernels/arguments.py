"""What kernels take and return beside single tensors, for the functions of weft.kernels and every backend alike."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Dropout = tuple[float, int, Tensor, Tensor]  # p, key, dst global ids int64 [N], src global ids int64 [M]
Method = Literal["neighbour", "weighted", "labor", "last"]
METHODS: tuple[Method, ...] = ("neighbour", "weighted", "labor", "last")


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """bf16 rows are summed in float32; float32 and float64 in themselves."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Cut(NamedTuple):
    """The long rows of a CSR, cut into pieces of at most so many edges, which backends sum up apart."""

    edges_per_piece: int
    piece_row: Tensor  # int32 [P], ascending
    piece_begin: Tensor  # int64 [P], the first edge of each piece
    long_rows: Tensor  # int64 [K]
    first_piece: Tensor  # int64 [K + 1], where the pieces of each long row begin


class InEdges(NamedTuple):
    """The in-edges of some rows, with the global ids by which draws are keyed."""

    indptr: Tensor  # int64 [N + 1]
    indices: Tensor  # int32 [E], columns
    weight: Tensor | None  # float32 [E]
    row_ids: Tensor  # int64 [N]
    col_ids: Tensor  # int64 [M]


class FirstEdges(NamedTuple):
    """Of R rows, how many of the first in-edges are drawn from, and what tells draws of the same row apart."""

    degrees: Tensor  # int32 [R]
    salts: Tensor  # int64 [R]


class Sampled(NamedTuple):
    """The edges that were drawn for R rows."""

    degrees: Tensor  # int32 [R], the number of in-edges among which each row's were drawn
    indptr: Tensor  # int64 [R + 1]
    columns: Tensor  # int32 [S]
    positions: Tensor | None  # int64 [S], the position of each drawn edge among all in-edges
    intervals: Tensor | None  # float64 [R], by weight: w / interval, or 1 above it, is the probability of an edge


class SideEdges(NamedTuple):
    """The edges of each row whose columns lie on one side of a border."""

    indptr: Tensor  # int64 [N + 1]
    indices: Tensor  # int32
    stood: Tensor | None  # int64, the position of each edge before the split
