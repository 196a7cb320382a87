"""Small CSR blocks drawn by hypothesis: empty rows, multi-edges, self-loops, no columns, no rows."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from weft import kernels


@dataclass(frozen=True)
class Block:
    indptr: Tensor
    indices: Tensor
    num_rows: int
    num_cols: int
    indptr_t: Tensor
    indices_t: Tensor
    order_t: Tensor

    @property
    def num_edges(self) -> int:
        return self.indices.numel()


def block_of(src: Tensor, dst: Tensor, num_cols: int, num_rows: int) -> Block:
    indptr, indices, _ = kernels.build_csr(src, dst, num_cols, num_rows)
    return Block(indptr, indices, num_rows, num_cols, *kernels.transpose_csr(indptr, indices, num_cols))


def random_block(num_rows: int, num_cols: int, num_edges: int, seed: int = 0) -> Block:
    if num_rows == 0 or num_cols == 0:
        num_edges = 0
    g = torch.Generator("cpu").manual_seed(seed)
    src, dst = (
        (torch.rand(num_edges, generator=g, device="cpu") ** 2 * ends).long().to(torch.get_default_device())
        for ends in (num_cols, num_rows)
    )
    return block_of(src, dst, num_cols, num_rows)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    num_rows, num_cols = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    edges = draw(st.integers(0, 200))  # more than a batch of one row
    return random_block(num_rows, num_cols, edges, draw(st.integers(0, 2**16)))


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same numbers on whichever device new tensors lie."""
    drawn = torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float64, device="cpu")
    return drawn.to(torch.get_default_device(), dtype)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {
        torch.float64: {"rtol": 1e-12, "atol": 1e-12},
        torch.float32: {"rtol": 1e-4, "atol": 1e-4},
        torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    }[dtype]
