"""Edge blocks ready for forward and backward: a CSR, its transpose, and coefficients on rows and columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weft import kernels
from weft.graph.graph import CSR
from weft.partition.shard import filter_csr


@dataclass(frozen=True)
class Block:
    """Edges from M source rows to N destination rows, with coefficient row_scale[i] * weight[e] * col_scale[j]."""

    csr: CSR
    row_scale: Tensor | None = None  # [N]
    col_scale: Tensor | None = None  # [M]

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor]:
        """indptr [M+1], indices [E] of the reversed edges."""
        indptr, indices, order = kernels.transpose_csr(self.csr.indptr, self.csr.indices, self.csr.num_cols)
        if self.csr.weight is not None:
            self.__dict__["transposed_weight"] = self.csr.weight[order]
        return indptr, indices

    @cached_property
    def transposed_weight(self) -> Tensor | None:
        return None if self.csr.weight is None else self.csr.weight[self.transposed_order]

    @cached_property
    def transposed_order(self) -> Tensor:
        """Each reversed edge's position among the forward edges, int64 [E]: large, so made only where it is read."""
        return kernels.transpose_csr(self.csr.indptr, self.csr.indices, self.csr.num_cols)[2]

    @cached_property
    def destinations(self) -> Tensor:
        """Each edge's destination row, int64 [E]."""
        rows = torch.arange(self.csr.num_rows, device=self.csr.indptr.device)
        return rows.repeat_interleave(self.csr.degrees())

    def scaled(self, row_scale: Tensor | None, col_scale: Tensor | None, weight: Tensor | None) -> "Block":
        """The same edges with other coefficients; the transpose, once made, is shared."""
        block = Block(replace(self.csr, weight=weight), row_scale, col_scale)
        for name in ("transposed", "transposed_order", "destinations"):
            if name in self.__dict__:
                block.__dict__[name] = self.__dict__[name]
        return block

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


def take_columns(csr: CSR, chosen: slice) -> CSR:
    """The edges whose column lies in a span, which is counted from its start."""
    if chosen == slice(0, csr.num_cols):
        return csr
    keep = (csr.indices >= chosen.start) & (csr.indices < chosen.stop)
    block = filter_csr(csr, keep)
    return replace(block, indices=block.indices - chosen.start, num_cols=chosen.stop - chosen.start)


def with_self_loops(csr: CSR) -> CSR:
    """One self-loop on every row: those that have one keep it (the last, where there are several)."""
    degrees = csr.degrees()
    rows = torch.arange(csr.num_rows, device=degrees.device)
    destination = rows.repeat_interleave(degrees)
    source = csr.indices.long()
    loop = source == destination
    loop_weight = torch.ones(csr.num_rows, dtype=torch.float32, device=degrees.device)
    if csr.weight is not None:
        loop_weight = loop_weight.to(csr.weight.dtype)
        loop_weight[destination[loop]] = csr.weight[loop]
    indptr, indices, order = kernels.build_csr(
        torch.cat([source[~loop], rows]), torch.cat([destination[~loop], rows]), csr.num_cols, csr.num_rows
    )
    weight = None if csr.weight is None else torch.cat([csr.weight[~loop], loop_weight])[order]
    return CSR(indptr, indices, csr.num_cols, weight)


def row_sums(csr: CSR) -> Tensor:
    """Sum of each row's weights (its degree where there are none), float64 [N]."""
    if csr.weight is None:
        return csr.degrees().double()
    ones = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.indptr.device)
    return kernels.spmm(csr.indptr, csr.indices, ones, weight=csr.weight.double()).squeeze(1)
