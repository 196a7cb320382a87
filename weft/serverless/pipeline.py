"""The pipeline: which task of which interval may run. Intervals flow through the tasks of an epoch independently.

Vertices are divided into intervals. In each epoch every interval performs the same list of steps, and waits only:

- to begin epoch e, until the weights contain the update of epoch e - 1, which means that every interval of every server
  has completed that epoch;
- to gather, until the rows that it reads have been written in the epoch that the schedule names: epoch e or, for stale
  rows, epoch e - 1.

With staleness None ("pipe") all rows must be of epoch e: every layer waits for the one before, and the numbers are
those of a pass over the whole graph. No row of an epoch before the first one is ever read.

The pipeline does not depend on time, threads or tensors: a graph server drives it, and so does the simulator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.serverless.schedule import Schedule
from weft_function.task import TaskKind


class Step(NamedTuple):
    kind: TaskKind
    stage: int


class IntervalId(NamedTuple):
    """Identifies an interval among those of all servers."""

    server: int
    interval: int


def epoch_steps(stages: int, edge_stages: Sequence[int] = ()) -> tuple[Step, ...]:
    """The steps of one epoch. `edge_stages`: stages whose gathering has an edge function.

    The last vertex function also computes the loss and its own gradient, so it has no step in the backward pass.
    """
    steps: list[Step] = []
    for stage in range(stages):
        if stage:
            steps += [Step(TaskKind.APPLY_EDGE, stage)] if stage in edge_stages else []
            steps.append(Step(TaskKind.GATHER, stage))
        steps.append(Step(TaskKind.APPLY_VERTEX, stage))
        if stage < stages - 1:
            steps.append(Step(TaskKind.SCATTER, stage))
    for stage in range(stages - 1, 0, -1):
        steps.append(Step(TaskKind.SCATTER_BACK, stage))
        steps += [Step(TaskKind.APPLY_EDGE_BACK, stage)] if stage in edge_stages else []
        steps += [Step(TaskKind.GATHER_BACK, stage), Step(TaskKind.APPLY_VERTEX_BACK, stage - 1)]
    return tuple(steps)


class WrongEpoch(AssertionError):
    """A gathering would read rows of another epoch than the schedule names: an error of the scheduler."""


@dataclass
class _Progress:
    epoch: int
    next_step: int = 0  # an index
    running: bool = False


class _Reads(NamedTuple):
    """The intervals whose rows an interval gathers."""

    fresh: frozenset[IntervalId]  # always of the epoch itself
    stale: frozenset[IntervalId]  # of the epoch before, in epochs that are not exact

    @classmethod
    def of(cls, schedule: Schedule, interval: int, sources: Iterable[IntervalId]) -> "_Reads":
        all_sources = frozenset(sources)
        stale = frozenset(source for source in all_sources if schedule.is_stale(interval, source.interval))
        return cls(all_sources - stale, stale)


class Pipeline:
    """The intervals of one server. `ready` returns each step once, and `finish` ends it."""

    def __init__(
        self,
        server: int,
        steps: Sequence[Step],
        schedule: Schedule,
        last_epoch: int,
        forward: Sequence[Iterable[IntervalId]],
        backward: Sequence[Iterable[IntervalId]],
    ) -> None:
        """`forward`, `backward`: for each interval, the intervals of all servers that its gathering reads."""
        assert len(forward) == len(backward)
        self.server, self.steps, self.schedule, self.last_epoch = server, tuple(steps), schedule, last_epoch
        self._reads: dict[TaskKind, list[_Reads]] = {
            TaskKind.GATHER: [_Reads.of(schedule, interval, sources) for interval, sources in enumerate(forward)],
            TaskKind.GATHER_BACK: [_Reads.of(schedule, interval, sources) for interval, sources in enumerate(backward)],
        }
        # An edge function reads the same rows as the gathering after it.
        self._reads[TaskKind.APPLY_EDGE] = self._reads[TaskKind.GATHER]
        self._reads[TaskKind.APPLY_EDGE_BACK] = self._reads[TaskKind.GATHER_BACK]
        self._progress = [_Progress(schedule.first_epoch) for _ in forward]
        self._written: dict[tuple[TaskKind, int, IntervalId], int] = {}  # the epoch of the latest rows
        self._last_update = schedule.first_epoch - 1

    # -- events -------------------------------------------------------------------------------------------------------

    def record_write(self, kind: TaskKind, stage: int, interval: IntervalId, epoch: int) -> None:
        """Rows of an interval, or their gradients, which it has computed in this epoch, can be read."""
        key = (kind, stage, interval)
        assert epoch >= self._written.get(key, 0), "rows arrived out of order"
        self._written[key] = epoch

    def record_update(self, epoch: int) -> None:
        """The weights contain the update of this epoch."""
        self._last_update = max(self._last_update, epoch)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return all(progress.epoch > self.last_epoch for progress in self._progress)

    def ready(self) -> list[tuple[int, int, Step]]:
        """(interval, epoch, step) of all steps that can run now, the least advanced first; they count as running."""
        found = []
        for interval, progress in enumerate(self._progress):
            if progress.running or progress.epoch > self.last_epoch:
                continue
            step = self.steps[progress.next_step]
            if self._can_run(interval, progress, step):
                progress.running = True
                found.append((interval, progress.epoch, step))
        return sorted(found, key=lambda one: (one[1], self._progress[one[0]].next_step, one[0]))

    def finish(self, interval: int) -> bool:
        """Ends the interval's running step; returns whether it was the last one of the epoch."""
        progress = self._progress[interval]
        assert progress.running
        progress.running, progress.next_step = False, progress.next_step + 1
        if progress.next_step < len(self.steps):
            return False
        progress.epoch, progress.next_step = progress.epoch + 1, 0
        return True

    def check_epochs(self, interval: int, step: Step) -> Mapping[IntervalId, int]:
        """The epoch of each interval's rows that a gathering is about to read; raises WrongEpoch if it is another."""
        epoch, source_step = self._progress[interval].epoch, self._source_step(step)
        reads = self._reads[step.kind][interval]
        epochs = dict.fromkeys(reads.fresh, epoch) | dict.fromkeys(reads.stale, self._stale_epoch(epoch))
        for source, wanted in epochs.items():
            written = self._written.get((*source_step, source), 0)
            if not wanted <= written < wanted + self.schedule.kept_epochs:
                raise WrongEpoch(
                    f"interval {interval} in epoch {epoch} would read rows of {source} from epoch {written}, not "
                    f"{wanted}"
                )
        return epochs

    def _can_run(self, interval: int, progress: _Progress, step: Step) -> bool:
        if progress.next_step == 0 and self._last_update < progress.epoch - 1:
            return False
        if step.kind not in self._reads:
            return True
        source_step, reads, written = self._source_step(step), self._reads[step.kind][interval], self._written
        stale_epoch = self._stale_epoch(progress.epoch)
        return all(written.get((*source_step, source), 0) >= progress.epoch for source in reads.fresh) and all(
            written.get((*source_step, source), 0) >= stale_epoch for source in reads.stale
        )

    def _stale_epoch(self, epoch: int) -> int:
        """The epoch of the rows that stale reads of this epoch refer to."""
        return epoch - (not self.schedule.is_exact(epoch))

    @staticmethod
    def _source_step(step: Step) -> tuple[TaskKind, int]:
        """The step that writes what this step reads."""
        if step.kind in (TaskKind.GATHER_BACK, TaskKind.APPLY_EDGE_BACK):
            return TaskKind.SCATTER_BACK, step.stage
        return TaskKind.SCATTER, step.stage - 1
