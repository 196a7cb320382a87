"""Randomness as a function: every draw is a hash of where and when it happens, never of a generator's state.

Nothing needs to be checkpointed, and nothing depends on the number of workers or on which of them owns a vertex.
"""

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.reference_sampling import splitmix64

_MASK = (1 << 64) - 1


def hash_key(*parts: int) -> int:
    """A signed 64-bit key from any integers, order included."""
    value = 0
    for part in parts:
        value = splitmix64(value ^ (part & _MASK))
    return value - (1 << 64) if value >> 63 else value


def hash_uniform(global_ids: Tensor, width: int, key: int) -> Tensor:
    """Uniform numbers in [0, 1) keyed by (key, global id, column), float32 [N, width]."""
    rows = reference.splitmix64(global_ids ^ key)
    columns = reference.splitmix64(torch.arange(width, device=global_ids.device))
    bits = reference.splitmix64(rows[:, None] ^ columns)
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)


class Noise:
    """Keys for the draws of one forward pass: a counter that every worker advances alike."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._epoch: int | None = None
        self._step: tuple[int, ...] = ()
        self._call = 0
        self._aggregations = 0

    def begin(self, epoch: int | None, *step: int) -> None:
        """Starts a forward pass of this epoch, and of a step of it; None: evaluation, where nothing is dropped."""
        self._epoch, self._step, self._call, self._aggregations = epoch, step, 0, 0

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def step(self) -> tuple[int, ...]:
        """Which step of the epoch; of a full graph's one there is none."""
        return self._step

    @property
    def place(self) -> tuple[int | None, int, int]:
        """Where the pass is; setting it makes the draws from there on happen again."""
        return self._epoch, self._call, self._aggregations

    @place.setter
    def place(self, place: tuple[int | None, int, int]) -> None:
        self._epoch, self._call, self._aggregations = place

    def next_key(self) -> int | None:
        if self._epoch is None:
            return None
        self._call += 1
        return hash_key(self.seed, self._epoch, *self._step, self._call)

    def next_aggregation(self) -> int:
        """Number of the aggregation that begins, in this pass."""
        self._aggregations += 1
        return self._aggregations
