"""Bounds of index vectors, in plain torch."""

import torch
from torch import Tensor


def extremes(index: Tensor) -> tuple[int, int]:
    """The smallest and the largest entry of a vector that is not empty."""
    smallest, largest = torch.aminmax(index)
    return int(smallest), int(largest)
