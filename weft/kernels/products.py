"""Matrix products of tall rows, most of whose elements may be zero.

After relu and dropout of one half, three quarters of a row are zero, and so is the gradient that comes back through
them. A backend may walk the rest alone, which gives the same sums up to their order; on a processor without matrix
units that is about twice as fast as a dense product.
"""

from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import kernel
from weft.kernels.checks import check_rows, check_state, require


def product(x: Tensor, matrix: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """x [N, K] @ matrix [K, M], where the rows of x may be mostly zeros; with `accumulate`, added into `out`."""
    check_rows("x", x)
    require(
        matrix.dim() == 2 and matrix.shape[0] == x.shape[1],
        f"rows have {x.shape[1]} columns, but the matrix has shape {tuple(matrix.shape)}",
    )
    require(out is not None or not accumulate, "accumulate needs `out`, the sums so far")
    if out is not None:
        check_state("out", out, (x.shape[0], matrix.shape[1]), x.dtype)
    return kernel(reference.product, x)(x, matrix, out, accumulate)


def reduce_product(left: Tensor, right: Tensor) -> Tensor:
    """left [N, K]^T @ right [N, M], a sum over the rows, where the rows of either may be mostly zeros."""
    check_rows("left", left)
    check_rows("right", right)
    require(
        left.shape[0] == right.shape[0],
        f"left and right must have as many rows, but have {left.shape[0]} and {right.shape[0]}",
    )
    return kernel(reference.reduce_product, left)(left, right)
