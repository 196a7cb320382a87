"""Where weights start: the distributions that the references of these layers draw from.

The generator is torch's, which a run seeds just before it builds the model: weights do not depend on the workers.
"""

import math

import torch
from torch import nn


def glorot(num_out: int, num_in: int) -> nn.Parameter:
    """A matrix [out, in], uniform within sqrt(6 / (in + out)) (Glorot & Bengio 2010): GCN, GAT, R-GCN."""
    return _uniform((num_out, num_in), math.sqrt(6.0 / (num_in + num_out)))


def by_fan_in(num_out: int, num_in: int) -> nn.Parameter:
    """A matrix [out, in], uniform within 1 / sqrt(in), as torch.nn.Linear starts: GraphSAGE, GIN, Transformer."""
    return _uniform((num_out, num_in), 1.0 / math.sqrt(num_in))


def bias_by_fan_in(width: int, num_in: int, wanted: bool = True) -> nn.Parameter | None:
    """The bias of torch.nn.Linear behind `num_in` inputs, uniform within 1 / sqrt(in)."""
    return _uniform((width,), 1.0 / math.sqrt(num_in)) if wanted else None


def zeros(width: int, wanted: bool = True) -> nn.Parameter | None:
    """A bias that starts at nothing."""
    return nn.Parameter(torch.zeros(width)) if wanted else None


def _uniform(shape: tuple[int, ...], bound: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
