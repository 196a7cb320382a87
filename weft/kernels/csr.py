"""Building and transposing CSR."""

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.checks import check_csr, check_index, require, trust_csr
from weft.kernels.native import native_for, pointer, threads


def build_csr(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges grouped by destination and sorted by source, equal ones in their given order.

    Returns indptr int64 [num_dst + 1], indices int32 [E], order int64 [E]: edge k was the order[k]-th given.
    """
    require(src.shape == dst.shape, f"src has {src.numel()} edges, but dst has {dst.numel()}")
    require(0 <= num_src < 2**31 and 0 <= num_dst < 2**31, "vertex counts must be in [0, 2^31)")
    require(src.dtype == dst.dtype, f"src is {src.dtype}, but dst is {dst.dtype}")
    check_index("src", src, num_src)
    check_index("dst", dst, num_dst)
    native = native_for(src)
    if native is None:
        indptr, indices, order = reference.build_csr(src, dst, num_src, num_dst)
    else:
        src, dst = src.contiguous(), dst.contiguous()
        indptr = torch.empty(num_dst + 1, dtype=torch.int64)
        indices = torch.empty(src.numel(), dtype=torch.int32)
        order = torch.empty(src.numel(), dtype=torch.int64)
        native.build_csr(
            pointer(src),
            pointer(dst),
            src.dtype == torch.int64,
            src.numel(),
            num_src,
            num_dst,
            pointer(indptr),
            pointer(indices),
            pointer(order),
            threads(),
        )
    trust_csr(indptr, indices, num_src)
    return indptr, indices, order


def transpose_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges grouped by source and sorted by destination; order[k] is the forward position of edge k."""
    require(0 <= num_cols < 2**31, "vertex counts must be in [0, 2^31)")
    check_csr(indptr, indices, num_cols)
    num_rows = indptr.numel() - 1
    native = native_for(indices)
    if native is None:
        indptr_t, indices_t, order = reference.transpose_csr(indptr, indices, num_cols)
    else:
        indptr_t = torch.empty(num_cols + 1, dtype=torch.int64)
        indices_t = torch.empty(indices.numel(), dtype=torch.int32)
        order = torch.empty(indices.numel(), dtype=torch.int64)
        native.transpose_csr(
            pointer(indptr),
            pointer(indices),
            num_rows,
            num_cols,
            indices.numel(),
            pointer(indptr_t),
            pointer(indices_t),
            pointer(order),
            threads(),
        )
    trust_csr(indptr_t, indices_t, num_rows)
    return indptr_t, indices_t, order
