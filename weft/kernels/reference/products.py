"""Matrix products of tall rows, in plain torch."""

import torch
from torch import Tensor


def product(x: Tensor, matrix: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    if out is None:
        return x @ matrix
    return out.addmm_(x, matrix) if accumulate else torch.mm(x, matrix, out=out)


def reduce_product(left: Tensor, right: Tensor) -> Tensor:
    return left.t() @ right
