"""Random numbers that are functions of a seed and a vertex's id, so that nobody needs a list of all vertices."""

import numpy as np
import torch

from weft.graph.files import Array
from weft.kernels.hash import splitmix64


def hashed(ids: Array, seed: int) -> Array:
    """64 bits for every id (int64), uint64."""
    key = splitmix64(torch.tensor([seed]))
    bits: Array = splitmix64(torch.from_numpy(ids) ^ key).numpy().view(np.uint64)
    return bits


def uniform(ids: Array, seed: int) -> Array:
    """A number in [0, 1) for every id."""
    drawn: Array = (hashed(ids, seed) >> np.uint64(11)) * 2.0**-53
    return drawn
