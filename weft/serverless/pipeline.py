"""Which task of which interval may run: intervals flow through an epoch's tasks by themselves, within bounds.

Vertices are cut into intervals. In an epoch each goes through the same list of steps; what it must wait for:

- to begin epoch e, the weights must hold the updates of all epochs up to e - 1 - S, which means that every interval of
  every server has completed those;
- to gather, what it reads of other intervals must have been written in epoch e - 1 - S or later.

With staleness None ("pipe") rows must be of epoch e itself: every layer waits for the one before, and the numbers are
those of the whole graph at once. S = 0 drops that barrier, so that rows of the epoch before may be read. Nothing of an
epoch before the first one is ever read.

Old weights make a run need more epochs, so a server lets intervals begin an epoch with them only while somebody would
have nothing to do otherwise (`ahead`).

Nothing here knows of time, threads or tensors: a server drives it, and so does the simulator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft_function.request import Kind


class Step(NamedTuple):
    kind: Kind
    stage: int


class Spot(NamedTuple):
    """An interval of a server."""

    server: int
    interval: int


def epoch_steps(stages: int, edge_stages: Sequence[int] = ()) -> tuple[Step, ...]:
    """The steps of one epoch. `edge_stages`: stages whose gathering follows a function of edges.

    The last vertex function also computes the loss and its own gradient, so there is none going back.
    """
    steps: list[Step] = []
    for stage in range(stages):
        if stage:
            steps += [Step(Kind.APPLY_EDGE, stage)] if stage in edge_stages else []
            steps.append(Step(Kind.GATHER, stage))
        steps.append(Step(Kind.APPLY_VERTEX, stage))
        if stage < stages - 1:
            steps.append(Step(Kind.SCATTER, stage))
    for stage in range(stages - 1, 0, -1):
        steps.append(Step(Kind.SCATTER_BACK, stage))
        steps += [Step(Kind.APPLY_EDGE_BACK, stage)] if stage in edge_stages else []
        steps += [Step(Kind.GATHER_BACK, stage), Step(Kind.APPLY_VERTEX_BACK, stage - 1)]
    return tuple(steps)


class TooOld(AssertionError):
    """Something gathered was older than the bound allows: a fault of the scheduler, never of the user."""


@dataclass
class Bound:
    """How old what is gathered may be."""

    staleness: int | None  # None: not at all
    first_epoch: int = 1
    exact_from: int | None = None  # epochs from this one on are as with None

    def oldest(self, epoch: int) -> int:
        """The epoch that rows must be of, or later."""
        if self.is_exact(epoch):
            return epoch
        assert self.staleness is not None
        return max(self.first_epoch, epoch - 1 - self.staleness)

    def needs_updates(self, epoch: int) -> int:
        """How many epochs' updates the weights must hold before an interval begins this one."""
        allowed = 0 if self.is_exact(epoch) else self.staleness or 0
        return max(self.first_epoch - 1, epoch - 1 - allowed)

    def is_exact(self, epoch: int) -> bool:
        return self.staleness is None or (self.exact_from is not None and epoch >= self.exact_from)


@dataclass
class _Progress:
    epoch: int
    at: int = 0  # index of the next step
    running: bool = False


class Pipeline:
    """One server's intervals. `forward` and `backward`: of each, the intervals that its gathering reads, any server's.

    A step is handed out once, by `ready`, and ends with `finish`.
    """

    def __init__(
        self,
        server: int,
        steps: Sequence[Step],
        bound: Bound,
        epochs: int,
        forward: Sequence[Iterable[Spot]],
        backward: Sequence[Iterable[Spot]],
    ) -> None:
        assert len(forward) == len(backward)
        self.server, self.steps, self.bound, self.last_epoch = server, tuple(steps), bound, epochs
        self._reads: dict[Kind, list[frozenset[Spot]]] = {
            Kind.GATHER: [frozenset(spots) for spots in forward],
            Kind.GATHER_BACK: [frozenset(spots) for spots in backward],
        }
        # Where a function of edges comes first, it reads the same.
        self._reads[Kind.APPLY_EDGE] = self._reads[Kind.GATHER]
        self._reads[Kind.APPLY_EDGE_BACK] = self._reads[Kind.GATHER_BACK]
        self._progress = [_Progress(bound.first_epoch) for _ in forward]
        self._written: dict[tuple[Kind, int, Spot], int] = {}
        self.updates = bound.first_epoch - 1

    # -- what happens elsewhere -----------------------------------------------------------------------------------

    def wrote(self, kind: Kind, stage: int, spot: Spot, epoch: int) -> None:
        """An interval's rows of a stage, or their gradients, are here, as it made them in this epoch."""
        place = (kind, stage, spot)
        assert epoch >= self._written.get(place, 0), "rows came out of order"
        self._written[place] = epoch

    def updated(self, updates: int) -> None:
        """The weights hold the updates of so many epochs."""
        self.updates = max(self.updates, updates)

    # -- steps ------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return all(progress.epoch > self.last_epoch for progress in self._progress)

    def ready(self, ahead: int | None = None) -> list[tuple[int, int, Step]]:
        """(interval, epoch, step) of all that can run now, those furthest behind first; they count as running.

        `ahead`: how many intervals at most may begin an epoch with weights that lack the update of the one before.
        """
        found = []
        for interval, progress in enumerate(self._progress):
            if progress.running or progress.epoch > self.last_epoch:
                continue
            step = self.steps[progress.at]
            runs_ahead = progress.at == 0 and self.updates < progress.epoch - 1
            if (runs_ahead and ahead == 0) or not self._may_run(interval, progress, step):
                continue
            if runs_ahead and ahead is not None:
                ahead -= 1
            progress.running = True
            found.append((interval, progress.epoch, step))
        return sorted(found, key=lambda one: (one[1], self._progress[one[0]].at, one[0]))

    def finish(self, interval: int) -> bool:
        """The interval's step is done; whether that was the epoch's last."""
        progress = self._progress[interval]
        assert progress.running
        progress.running, progress.at = False, progress.at + 1
        if progress.at < len(self.steps):
            return False
        progress.epoch, progress.at = progress.epoch + 1, 0
        return True

    def check_ages(self, interval: int, step: Step) -> Mapping[Spot, int]:
        """The epochs of what a gathering is about to read; raises if one is older than the bound."""
        epoch, source = self._progress[interval].epoch, self._source(step)
        ages = {spot: self._written.get((*source, spot), 0) for spot in self._reads[step.kind][interval]}
        oldest = self.bound.oldest(epoch)
        for spot, written in ages.items():
            if written < oldest:
                raise TooOld(f"interval {interval} in epoch {epoch} would read rows of {spot} from epoch {written}")
        return ages

    def _may_run(self, interval: int, progress: _Progress, step: Step) -> bool:
        if progress.at == 0 and self.updates < self.bound.needs_updates(progress.epoch):
            return False
        if step.kind not in self._reads:
            return True
        oldest, source = self.bound.oldest(progress.epoch), self._source(step)
        return all(self._written.get((*source, spot), 0) >= oldest for spot in self._reads[step.kind][interval])

    @staticmethod
    def _source(step: Step) -> tuple[Kind, int]:
        """Whose writing a step reads."""
        if step.kind in (Kind.GATHER_BACK, Kind.APPLY_EDGE_BACK):
            return Kind.SCATTER_BACK, step.stage
        return Kind.SCATTER, step.stage - 1
