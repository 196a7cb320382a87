"""Edge blocks ready for forward and backward: a CSR, its transpose, and coefficients on rows and columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weft import kernels
from weft.graph.graph import CSR


@dataclass(frozen=True)
class Block:
    """Edges from M source rows to N destination rows, with coefficient row_scale[i] * weight[e] * col_scale[j]."""

    csr: CSR
    row_scale: Tensor | None = None  # [N]
    col_scale: Tensor | None = None  # [M]

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """indptr [M+1], indices [E] of the reversed edges, and each one's position among the forward edges."""
        return kernels.transpose_csr(self.csr.indptr, self.csr.indices, self.csr.num_cols)

    @cached_property
    def transposed_weight(self) -> Tensor | None:
        return None if self.csr.weight is None else self.csr.weight[self.transposed[2]]

    @cached_property
    def destinations(self) -> Tensor:
        """Each edge's destination row, int64 [E]."""
        rows = torch.arange(self.csr.num_rows, device=self.csr.indptr.device)
        return rows.repeat_interleave(self.csr.degrees())

    def scaled(self, row_scale: Tensor | None, col_scale: Tensor | None, weight: Tensor | None) -> "Block":
        """The same edges with other coefficients; the transpose, once made, is shared."""
        block = Block(replace(self.csr, weight=weight), row_scale, col_scale)
        if "transposed" in self.__dict__:
            block.__dict__["transposed"] = self.transposed
        return block

    def cast(self, dtype: torch.dtype) -> "Block":
        """Coefficients in the precision that the kernels want beside rows of `dtype`."""
        wanted = torch.float64 if dtype == torch.float64 else torch.float32

        def to(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(wanted)

        return self.scaled(to(self.row_scale), to(self.col_scale), to(self.csr.weight))


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
