"""What may run when: nothing older than the bound is ever read, whatever order things happen in."""

import random

import pytest

from weft.serverless.pipeline import IntervalId, Pipeline, WrongEpoch, epoch_steps
from weft.serverless.schedule import Schedule
from weft_function.task import TaskKind

SCHEDULES = 4_000


class World:
    """Servers whose pipelines are driven in a random order: messages between them are late by any time."""

    def __init__(self, rng: random.Random, staleness: int | None, servers: int, intervals: int, epochs: int) -> None:
        self.rng, self.staleness = rng, staleness
        ids = [IntervalId(server, interval) for server in range(servers) for interval in range(intervals)]
        some = [[{one for one in ids if rng.random() < 0.6} for _ in range(intervals)] for _ in range(2 * servers)]
        self.steps, schedule = epoch_steps(2), Schedule(staleness, intervals, watches_loss=False)
        self.pipelines = [
            Pipeline(server, self.steps, schedule, epochs, some[2 * server], some[2 * server + 1])
            for server in range(servers)
        ]
        self.running: list[tuple[int, int, int, object]] = []
        self.inboxes: dict[tuple[int, int], list[tuple[object, ...]]] = {}  # messages from one to another, in order
        self.done = [0] * (epochs + 2)  # intervals that have completed an epoch
        self.total = servers * intervals
        self.oldest_read, self.most_ahead = 0, 0
        self.read: dict[tuple[int, int, int, object], dict[IntervalId, int]] = {}  # epochs, by reader

    def run(self) -> None:
        while not all(pipeline.done for pipeline in self.pipelines):
            for server, pipeline in enumerate(self.pipelines):
                self.running += [(server, *one) for one in pipeline.ready()]
            full = [pair for pair, messages in self.inboxes.items() if messages]
            choice = self.rng.randrange(len(self.running) + len(full))
            if choice < len(self.running):
                self.end(*self.running.pop(choice))  # type: ignore[arg-type]
            else:
                sender, reader = full[choice - len(self.running)]
                self.pipelines[reader].record_write(*self.inboxes[sender, reader].pop(0))  # type: ignore[arg-type]

    def end(self, server: int, interval: int, epoch: int, step) -> None:  # type: ignore[no-untyped-def]
        pipeline = self.pipelines[server]
        if step.kind in (TaskKind.GATHER, TaskKind.GATHER_BACK):
            ages = pipeline.check_epochs(interval, step)
            self.read[server, interval, epoch, step] = dict(ages)
            if ages:
                self.oldest_read = max(self.oldest_read, epoch - min(ages.values()))
        if step.kind in (TaskKind.SCATTER, TaskKind.SCATTER_BACK):
            own = IntervalId(server, interval)
            for other in range(len(self.pipelines)):
                message = (step.kind, step.stage, own, epoch)
                if other == server:
                    pipeline.record_write(*message)
                else:
                    self.inboxes.setdefault((server, other), []).append(message)
        if pipeline.finish(interval):
            self.done[epoch] += 1
            finished = next(e for e in range(1, len(self.done)) if self.done[e] < self.total) - 1
            self.most_ahead = max(self.most_ahead, epoch - finished)
            if self.done[epoch] == self.total:
                for other in self.pipelines:
                    other.record_update(finished)


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_staleness_over_many_schedules(staleness: int | None) -> None:
    """Ages are asserted at each gathering, as in a run; and bounds are reached, so that they mean something."""
    rng = random.Random(7)
    oldest = ahead = 0
    for _ in range(SCHEDULES):
        world = World(rng, staleness, rng.choice((1, 2)), rng.choice((1, 4)), epochs=3)
        world.run()
        oldest, ahead = max(oldest, world.oldest_read), max(ahead, world.most_ahead)
    assert ahead == 1
    assert oldest == (0 if staleness is None else 1)


def test_what_is_read_does_not_depend_on_the_order_of_events() -> None:
    """The same intervals, driven in a hundred orders: each gathering reads rows of the same epochs."""
    reads = []
    for seed in range(100):
        world = World(random.Random(3), 0, 2, 4, epochs=3)  # what is read of whom is drawn here
        world.rng = random.Random(seed)
        world.run()
        reads.append(world.read)
    assert len({tuple(world_read) for world_read in reads}) > 1  # in other orders
    assert all(world_read == reads[0] for world_read in reads)


def test_a_scheduler_that_does_not_wait_is_caught() -> None:
    """The gate that is asserted at gatherings does not trust the order that steps were handed out in."""
    pipeline = Pipeline(0, epoch_steps(2), Schedule(None), 2, [{IntervalId(1, 0)}], [set()])
    step = next(step for step in pipeline.steps if step.kind is TaskKind.GATHER)
    with pytest.raises(WrongEpoch, match="epoch 1 would read"):
        pipeline.check_epochs(0, step)
    pipeline.record_write(TaskKind.SCATTER, 0, IntervalId(1, 0), 1)
    assert pipeline.check_epochs(0, step) == {IntervalId(1, 0): 1}
    pipeline.record_write(TaskKind.SCATTER, 0, IntervalId(1, 0), 2)
    with pytest.raises(WrongEpoch, match="from epoch 2, not 1"):  # written over
        pipeline.check_epochs(0, step)


def test_an_epoch_begins_once_the_weights_hold_the_update_of_the_one_before() -> None:
    pipeline = Pipeline(0, epoch_steps(1), Schedule(1, 3, watches_loss=False), 3, [set()] * 3, [set()] * 3)

    def begun() -> list[tuple[int, int]]:
        return [(interval, epoch) for interval, epoch, _ in pipeline.ready()]

    assert begun() == [(0, 1), (1, 1), (2, 1)]
    for interval in range(3):
        pipeline.finish(interval)
    assert begun() == []
    pipeline.record_update(1)
    assert begun() == [(0, 2), (1, 2), (2, 2)]


def test_nine_kinds() -> None:
    """All nine kinds of tasks exist; eight are steps of intervals, and the last one is the update."""
    steps = epoch_steps(3, edge_stages=(1, 2))
    assert {step.kind for step in steps} | {TaskKind.UPDATE} == set(TaskKind)
    assert len(TaskKind) == 9 and len(set(steps)) == len(steps)
