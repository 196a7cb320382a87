"""Edge blocks ready for forward and backward: a CSR, its transpose, and coefficients on rows and columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weft import kernels
from weft.errors import UserError
from weft.graph.graph import CSR

NEW_LOOP = {"weight": 1, "relation": -1, "features": 0}  # what an added self-loop carries


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


def with_self_loops(csr: CSR) -> CSR:
    """One self-loop on every row: those that have one keep it (the last, where there are several).

    A new one has weight 1, features 0 and relation -1, which is none of the graph's.
    """
    degrees = csr.degrees()
    rows = torch.arange(csr.num_rows, device=degrees.device)
    destination = rows.repeat_interleave(degrees)
    source = csr.indices.long()
    loop = source == destination
    indptr, indices, order = kernels.build_csr(
        torch.cat([source[~loop], rows]), torch.cat([destination[~loop], rows]), csr.num_cols, csr.num_rows
    )
    carried = {}
    for name, data in csr.edge_data.items():
        of_loop = data.new_full((csr.num_rows, *data.shape[1:]), NEW_LOOP[name])
        of_loop[destination[loop]] = data[loop]
        carried[name] = torch.cat([data[~loop], of_loop])[order]
    return CSR(indptr, indices, csr.num_cols, **carried)


def by_relation(csr: CSR, num_relations: int) -> CSR:
    """The same edges with a row for every (destination, relation): row i * R + r holds i's in-edges of relation r.

    Of what edges carry only the weights go along: the rows tell the relations.
    """
    assert csr.relation is not None, "edges of one kind have no relations to be grouped by"
    num_rows = csr.num_rows * num_relations
    if num_rows >= 2**31:
        raise UserError(
            f"{csr.num_rows} vertices of one worker times {num_relations} relations are more rows than weft can "
            "number: use more workers, or join relations"
        )
    relation = csr.relation.long()
    assert not relation.numel() or (int(relation.min()) >= 0 and int(relation.max()) < num_relations)
    rows = torch.arange(csr.num_rows, device=relation.device).repeat_interleave(csr.degrees())
    indptr, indices, order = kernels.build_csr(
        csr.indices.long(), rows * num_relations + relation, csr.num_cols, num_rows
    )
    return CSR(indptr, indices, csr.num_cols, None if csr.weight is None else csr.weight[order])


def row_sums(csr: CSR) -> Tensor:
    """Sum of each row's weights (its degree where there are none), float64 [N]."""
    if csr.weight is None:
        return csr.degrees().double()
    ones = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.indptr.device)
    return kernels.spmm(csr.indptr, csr.indices, ones, weight=csr.weight.double()).squeeze(1)
