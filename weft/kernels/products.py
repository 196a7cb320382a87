"""Matrix products of tall rows, most of whose elements may be zero.

After relu and dropout of one half, three quarters of a row are zero, and so is the gradient that comes back through
them. A backend may walk the rest alone, which gives the same sums up to their order; on a processor without matrix
units that is about twice as fast as a dense product. Where rows never change and are nearly
all zero, as the words of documents are, the non-zeros are listed once, so that the dense rows are not read again.
"""

from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import kernel
from weft.kernels.checks import check_rows, check_state, require
from weft.kernels.lists import Lists


def product(
    x: Tensor, matrix: Tensor, out: Tensor | None = None, accumulate: bool = False, lists: Lists | None = None
) -> Tensor:
    """x [N, K] @ matrix [K, M], where the rows of x may be mostly zeros; with `accumulate`, added into `out`.

    `lists`: of the non-zeros of x by row, if they are known; the result has the same bits.
    """
    check_rows("x", x)
    require(
        matrix.dim() == 2 and matrix.shape[0] == x.shape[1],
        f"rows have {x.shape[1]} columns, but the matrix has shape {tuple(matrix.shape)}",
    )
    require(out is not None or not accumulate, "accumulate needs `out`, the sums so far")
    if out is not None:
        check_state("out", out, (x.shape[0], matrix.shape[1]), x.dtype)
    require(
        lists is None or (not lists.by_column and lists.num_rows == x.shape[0]),
        "lists must be by row, and of as many rows as x has",
    )
    return kernel(reference.product, x)(x, matrix, out, accumulate, lists)


def reduce_product(left: Tensor, right: Tensor, lists: Lists | None = None) -> Tensor:
    """left [N, K]^T @ right [N, M], a sum over the rows, where the rows of either may be mostly zeros.

    `lists`: of the non-zeros of `right` by column, if they are known; the result has the same bits.
    """
    check_rows("left", left)
    check_rows("right", right)
    require(
        left.shape[0] == right.shape[0],
        f"left and right must have as many rows, but have {left.shape[0]} and {right.shape[0]}",
    )
    require(
        lists is None or (lists.by_column and lists.num_rows == right.shape[0]),
        "lists must be by column, and of as many rows as right has",
    )
    return kernel(reference.reduce_product, left)(left, right, lists)


def list_nonzeros(x: Tensor, by_column: bool) -> Lists | None:
    """Lists for `product` (by row) or `reduce_product` (by column); None where they would not pay."""
    check_rows("x", x)
    if x.device.type != "cpu":
        return None
    return kernel(reference.list_nonzeros, x)(x, by_column)
