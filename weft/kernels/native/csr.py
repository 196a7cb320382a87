"""Building and transposing CSR."""

import torch
from torch import Tensor

from weft.kernels import _native
from weft.kernels.native.pointers import pointer, threads

_Csr = tuple[Tensor, Tensor, Tensor]


def build_csr(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> _Csr:
    indptr, indices, order = csr = _empty(num_dst, src.numel())
    _native.build_csr(
        pointer(src), pointer(dst), src.dtype == torch.int64, src.numel(), num_src, num_dst,
        pointer(indptr), pointer(indices), pointer(order), threads(),
    )  # fmt: skip
    return csr


def transpose_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> _Csr:
    indptr_t, indices_t, order = csr = _empty(num_cols, indices.numel())
    _native.transpose_csr(
        pointer(indptr), pointer(indices), indptr.numel() - 1, num_cols, indices.numel(),
        pointer(indptr_t), pointer(indices_t), pointer(order), threads(),
    )  # fmt: skip
    return csr


def _empty(num_rows: int, num_edges: int) -> _Csr:
    """indptr, indices and the order of the edges."""
    indptr, order = torch.empty(num_rows + 1, dtype=torch.int64), torch.empty(num_edges, dtype=torch.int64)
    return indptr, torch.empty(num_edges, dtype=torch.int32), order
