"""Edge blocks ready for forward and backward: a CSR, its transpose, and coefficients on rows and columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weft import kernels
from weft.graph.csr import CSR, row_numbers
from weft.kernels.arguments import Cut


class Structure:
    """Which edges there are, without coefficients: their transpose and destinations, each made once.

    Blocks that differ in coefficients alone hold one structure in common.
    """

    def __init__(self, csr: CSR) -> None:
        self._indptr, self._indices, self._num_cols = csr.indptr, csr.indices, csr.num_cols
        self._transposed: tuple[Tensor, Tensor] | None = None
        self._order: Tensor | None = None

    @cached_property
    def cut(self) -> Cut | None:
        """The long rows in pieces, where the backend wants them so."""
        return kernels.cut_rows(self._indptr)

    @cached_property
    def transposed_cut(self) -> Cut | None:
        """The same of the reversed edges."""
        return kernels.cut_rows(self.transposed[0])

    @property
    def transposed(self) -> tuple[Tensor, Tensor]:
        """indptr [M+1], indices [E] of the reversed edges."""
        if self._transposed is None:
            self._transpose()
        assert self._transposed is not None
        return self._transposed

    def transposed_data(self, data: Tensor) -> Tensor:
        """What the edges carry, [E], in the order of the reversed edges."""
        return data[self._transpose() if self._order is None else self._order]

    @property
    def transposed_order(self) -> Tensor:
        """Each reversed edge's position among the forward edges, int64 [E]: large, so kept only where it is read."""
        if self._order is None:
            self._order = self._transpose()
        return self._order

    @cached_property
    def destinations(self) -> Tensor:
        """Each edge's destination row, int64 [E]."""
        return row_numbers(self._indptr)

    def _transpose(self) -> Tensor:
        """Makes the transpose, if there is none yet, and returns the order of its edges."""
        indptr, indices, order = kernels.transpose_csr(self._indptr, self._indices, self._num_cols)
        if self._transposed is None:
            self._transposed = indptr, indices
        return order


@dataclass(frozen=True)
class Block:
    """Edges from M source rows to N destination rows, with coefficient row_scale[i] * weight[e] * col_scale[j]."""

    csr: CSR
    row_scale: Tensor | None = None  # [N]
    col_scale: Tensor | None = None  # [M]
    shared: Structure | None = None  # of a block with the same edges; None: this block makes its own

    @cached_property
    def structure(self) -> Structure:
        return Structure(self.csr) if self.shared is None else self.shared

    @property
    def transposed(self) -> tuple[Tensor, Tensor]:
        """indptr [M+1], indices [E] of the reversed edges."""
        return self._reversed[:2]

    @property
    def transposed_weight(self) -> Tensor | None:
        """The weights in the order of the reversed edges, [E]."""
        return self._reversed[2]

    @cached_property
    def _reversed(self) -> tuple[Tensor, Tensor, Tensor | None]:
        # The weights first: the transposition that orders them also gives the structure its transpose.
        weight = None if self.csr.weight is None else self.structure.transposed_data(self.csr.weight)
        return (*self.structure.transposed, weight)

    @property
    def transposed_order(self) -> Tensor:
        """Each reversed edge's position among the forward edges, int64 [E]."""
        return self.structure.transposed_order

    @property
    def destinations(self) -> Tensor:
        """Each edge's destination row, int64 [E]."""
        return self.structure.destinations

    @property
    def cut(self) -> Cut | None:
        """The long rows in pieces, where the backend wants them so."""
        return self.structure.cut

    @property
    def transposed_cut(self) -> Cut | None:
        """The same of the reversed edges."""
        return self.structure.transposed_cut

    def scaled(self, row_scale: Tensor | None, col_scale: Tensor | None, weight: Tensor | None) -> "Block":
        """The same edges with other coefficients; both blocks share one structure."""
        return Block(replace(self.csr, weight=weight), row_scale, col_scale, self.structure)

    def cast(self, dtype: torch.dtype) -> "Block":
        """Coefficients in the precision that the kernels want beside rows of `dtype`."""
        wanted = torch.float64 if dtype == torch.float64 else torch.float32

        def to(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(wanted)

        return self.scaled(to(self.row_scale), to(self.col_scale), to(self.csr.weight))

    def first_rows(self, num_rows: int) -> "Block":
        """The edges into the first rows; nothing is copied."""
        if num_rows == self.csr.num_rows:
            return self
        row_scale = None if self.row_scale is None else self.row_scale[:num_rows]
        return Block(self.csr.first_rows(num_rows), row_scale, self.col_scale)

    def first_columns(self, num_cols: int) -> "Block":
        """The same edges, where none comes from a later column."""
        if num_cols == self.csr.num_cols:
            return self
        col_scale = None if self.col_scale is None else self.col_scale[:num_cols]
        return Block(replace(self.csr, num_cols=num_cols), self.row_scale, col_scale)

    def renumbered(self, column: Tensor, num_cols: int) -> "Block":
        """Column j becomes column[j] (int32 [M]); those that no edge reads may be -1."""
        if num_cols == self.csr.num_cols:
            return self
        col_scale = None if self.col_scale is None else self.col_scale[column >= 0]
        indices = column[self.csr.indices.long()]
        return Block(replace(self.csr, indices=indices, num_cols=num_cols), self.row_scale, col_scale)

    def padded(self, num_rows: int) -> "Block":
        """More rows at the end, without edges."""
        more = num_rows - self.csr.num_rows
        if more == 0:
            return self
        row_scale = self.row_scale
        if row_scale is not None:
            row_scale = torch.cat([row_scale, row_scale.new_zeros(more)])
        indptr = torch.cat([self.csr.indptr, self.csr.indptr[-1:].expand(more)])
        return Block(replace(self.csr, indptr=indptr), row_scale, self.col_scale)
