"""Building and transposing CSR."""

from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import kernel
from weft.kernels.checks import check_csr, check_index, require, trust_csr


def build_csr(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges grouped by destination and sorted by source, equal ones in their given order.

    Returns indptr int64 [num_dst + 1], indices int32 [E], order int64 [E]: edge k was the order[k]-th given.
    """
    require(src.shape == dst.shape, f"src has {src.numel()} edges, but dst has {dst.numel()}")
    require(0 <= num_src < 2**31 and 0 <= num_dst < 2**31, "vertex counts must be in [0, 2^31)")
    require(src.dtype == dst.dtype, f"src is {src.dtype}, but dst is {dst.dtype}")
    check_index("src", src, num_src)
    check_index("dst", dst, num_dst)
    indptr, indices, order = kernel(reference.build_csr, src)(src.contiguous(), dst.contiguous(), num_src, num_dst)
    trust_csr(indptr, indices, num_src)
    return indptr, indices, order


def transpose_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges grouped by source and sorted by destination; order[k] is the forward position of edge k."""
    require(0 <= num_cols < 2**31, "vertex counts must be in [0, 2^31)")
    check_csr(indptr, indices, num_cols)
    indptr_t, indices_t, order = kernel(reference.transpose_csr, indices)(indptr, indices, num_cols)
    trust_csr(indptr_t, indices_t, indptr.numel() - 1)
    return indptr_t, indices_t, order
