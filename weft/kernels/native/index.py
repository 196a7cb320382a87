"""Bounds of index vectors."""

import torch
from torch import Tensor

from weft.kernels import _native
from weft.kernels.native.pointers import pointer, threads


def extremes(index: Tensor) -> tuple[int, int]:
    return _native.extremes(pointer(index), index.numel(), index.dtype == torch.int64, threads())
