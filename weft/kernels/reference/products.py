"""Matrix products of tall rows, in plain torch."""

import torch
from torch import Tensor

from weft.kernels.lists import Lists


def product(
    x: Tensor, matrix: Tensor, out: Tensor | None = None, accumulate: bool = False, lists: Lists | None = None
) -> Tensor:
    if out is None:
        return x @ matrix
    return out.addmm_(x, matrix) if accumulate else torch.mm(x, matrix, out=out)


def reduce_product(left: Tensor, right: Tensor, lists: Lists | None = None) -> Tensor:
    return left.t() @ right


def list_nonzeros(x: Tensor, by_column: bool) -> Lists | None:
    return None  # a dense product has no use for them
