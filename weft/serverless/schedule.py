"""The staleness bound: which epoch's rows an interval reads depends on its number and past losses, never on timing.

A schedule that took the newest rows would make a run depend on how fast functions respond. Here the number of an
interval at its server decides, so that equal runs have equal bits, and slow functions are waited for.

- In an *exact* epoch an interval reads rows of the same epoch. With staleness `pipe` every epoch is exact.
- With staleness 0 or more, an interval reads stale rows, those of the epoch before, from intervals whose number exceeds
  its own by more than `1 - WINDOW` of all intervals. So the first intervals continue with their next layer while
  functions compute the last ones. Older rows or older weights would gain nothing: a larger bound allows the same.

Stale values act like a delay in a control loop: where the loss is steep, as in the first epochs of Adam, training
overshoots, units die, and it does not recover. So an epoch is exact until STEADY_EPOCHS losses are known, and whenever
the last loss exceeds the lowest one by more than STEADY_RISE of the first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 0.75
STEADY_EPOCHS, STEADY_RISE = 5, 0.05
PLATEAU_EPOCHS = 10  # over which the loss must fall by the share `plateau`


@dataclass
class Schedule:
    """The schedule of a run whose servers have `intervals` each."""

    staleness: int | None  # None: every epoch is exact
    intervals: int = 1
    first_epoch: int = 1
    plateau: float | None = None  # all further epochs are exact once the loss falls by a smaller share than this
    watches_loss: bool = True  # False: for a simulated run, which has no loss
    continues: bool = False  # whether the rows of the epoch before the first are known
    losses: list[float] = field(default_factory=list)  # of all epochs, also of those before the first
    exact_from: int | None = None
    _exact: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._exact[self.first_epoch] = not self.continues or self._decide(self.first_epoch)

    # -- epochs -------------------------------------------------------------------------------------------------------

    def is_exact(self, epoch: int) -> bool:
        """Known once the weights contain the update of the epoch before."""
        if self.staleness is None:
            return True
        if not self.watches_loss:
            return epoch == self.first_epoch
        return self._exact[epoch]

    def record_loss(self, epoch: int, loss: float) -> None:
        """Adds an epoch's loss, which is the same on all servers."""
        self.losses.append(loss)
        self._exact[epoch + 1] = self._decide(epoch + 1)
        self._exact.pop(epoch - 1, None)

    def state(self) -> dict[str, Any]:
        """For a checkpoint, so that the epochs after it are scheduled alike."""
        return {"losses": list(self.losses), "exact_from": self.exact_from}

    @classmethod
    def resumed(cls, state: Mapping[str, Any], continues: bool, **settings: Any) -> "Schedule":
        """A schedule that continues from the state in a checkpoint."""
        losses, exact_from = list(state.get("losses", ())), state.get("exact_from")
        return cls(losses=losses, exact_from=exact_from, continues=continues, **settings)

    def _decide(self, epoch: int) -> bool:
        if self.staleness is None or (self.exact_from is not None and epoch >= self.exact_from):
            return True
        losses = self.losses
        if len(losses) < STEADY_EPOCHS or not math.isfinite(losses[-1]):
            return True
        if self.plateau is not None and len(losses) > PLATEAU_EPOCHS:
            previous = losses[-1 - PLATEAU_EPOCHS]
            if previous - losses[-1] < self.plateau * abs(previous):
                self.exact_from = epoch
                return True
        return losses[-1] > min(losses) + STEADY_RISE * abs(losses[0])

    # -- rows ---------------------------------------------------------------------------------------------------------

    def is_stale(self, interval: int, source: int) -> bool:
        """Whether interval `interval` reads stale rows from interval `source`, in epochs that are not exact."""
        return self.staleness is not None and source - interval > self.intervals * (1 - WINDOW)

    @property
    def num_never_stale(self) -> int:
        """How many intervals, the first ones of each server, are never read stale."""
        return min(self.intervals, math.floor(self.intervals * (1 - WINDOW)) + 1)

    @property
    def kept_epochs(self) -> int:
        """Of how many epochs rows must be kept."""
        return 1 if self.staleness is None else 2
