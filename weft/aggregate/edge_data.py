"""What edges carry, folded into one row per vertex: sums and means of it, and the loops that carry its mean."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.blocks import Block
from weft.aggregate.coefficients import reciprocal
from weft.graph.csr import CSR, filter_csr, row_numbers

AVERAGED = ("weight", "features")  # of a loop; its relation is none of the graph's


def precision(dtype: torch.dtype) -> torch.dtype:
    """In which numbers of edges are, beside rows of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sums_of_edges(blocks: Sequence[Block], data: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """What the edges of each row carry, added up with the blocks' coefficients, which are of `dtype`: [N, F].

    `data`: of each block's edges, [E] or [E, F].
    """
    total: Tensor | None = None
    for block, rows in zip(blocks, data, strict=True):
        csr = block.csr
        edges = torch.arange(csr.num_edges, dtype=torch.int32, device=rows.device)
        rows = (rows if rows.dim() == 2 else rows.unsqueeze(1)).to(dtype).contiguous()
        found = kernels.spmm(csr.indptr, edges, rows, csr.weight, block.row_scale)
        total = found if total is None else total + found
    assert total is not None
    return total


def means_of_edges(sides: Sequence[CSR], counts: Sequence[Tensor | None], dtype: torch.dtype) -> dict[str, Tensor]:
    """The mean of what all edges of each row carry; 0 where there are none.

    `sides`: CSRs of the same rows; `counts`: of each side, how often each of its edges counts, [E]; None: once.
    """
    wanted = precision(dtype)
    factors = [None if count is None else count.to(wanted) for count in counts]
    blocks = [Block(replace(side, weight=factor)) for side, factor in zip(sides, factors, strict=True)]
    share = reciprocal(sums_of_edges(blocks, [torch.ones_like(side.indices) for side in sides], wanted))
    found = {}
    for name in AVERAGED:
        if name in sides[0].edge_data:
            sums = sums_of_edges(blocks, [side.edge_data[name] for side in sides], wanted)
            found[name] = (sums * share).reshape(-1, *sides[0].edge_data[name].shape[1:])
    return found


def without_loops(csr: CSR) -> CSR:
    """The edges that lead from one row to another; the first columns are the rows."""
    loop = csr.indices == row_numbers(csr.indptr)
    return filter_csr(csr, ~loop) if bool(loop.any()) else csr


def with_loops_carrying(csr: CSR, of_loop: dict[str, Tensor]) -> CSR:
    """A loop on every row, the first of its edges, in front of the edges there are; `of_loop`: what the loops carry."""
    rows = torch.arange(csr.num_rows, device=csr.indptr.device)
    indptr = csr.indptr + torch.arange(csr.num_rows + 1, device=csr.indptr.device)
    edge = torch.ones(csr.num_edges + csr.num_rows, dtype=torch.bool, device=csr.indptr.device)
    edge[indptr[:-1]] = False

    def joined(loops: Tensor, edges: Tensor) -> Tensor:
        both = loops.new_empty(edge.numel(), *loops.shape[1:])
        both[~edge], both[edge] = loops, edges.to(loops.dtype)
        return both

    carried = {name: joined(loops, csr.edge_data[name]) for name, loops in of_loop.items()}
    if csr.relation is not None:
        carried["relation"] = joined(csr.relation.new_full((csr.num_rows,), -1), csr.relation)
    return CSR(indptr, joined(rows.int(), csr.indices), csr.num_cols, **carried)
