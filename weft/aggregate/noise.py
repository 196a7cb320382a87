"""Randomness as a function: every draw is a hash of the seed, the epoch, the step and the call, not of a state.

So nothing needs to be checkpointed, and no draw depends on the number of workers or on which of them owns a vertex.
"""

from weft.kernels.hash import hash_key


class Noise:
    """Keys for the draws of a forward pass: every worker asks for the same keys in the same order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._epoch: int | None = None
        self._step: tuple[int, ...] = ()
        self._call = 0
        self._aggregations = 0

    def begin(self, epoch: int | None, *step: int) -> None:
        """Starts a forward pass of this epoch, and of a step of it; None: an exact pass, which drops nothing."""
        self._epoch, self._step, self._call, self._aggregations = epoch, step, 0, 0

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def step(self) -> tuple[int, ...]:
        """The step of the epoch; empty where an epoch is one step over the full graph."""
        return self._step

    @property
    def place(self) -> tuple[int | None, int, int]:
        """Epoch, draws and aggregations so far. To set it to an earlier one is to repeat the draws after it."""
        return self._epoch, self._call, self._aggregations

    @place.setter
    def place(self, place: tuple[int | None, int, int]) -> None:
        self._epoch, self._call, self._aggregations = place

    def next_key(self) -> int | None:
        """The key of the next draw; None: nothing is drawn in this pass."""
        if self._epoch is None:
            return None
        self._call += 1
        return hash_key(self.seed, self._epoch, *self._step, self._call)

    def next_aggregation(self) -> int:
        """The number in this pass of the aggregation that begins."""
        self._aggregations += 1
        return self._aggregations
