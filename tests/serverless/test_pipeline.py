"""What may run when: nothing older than the bound is ever read, whatever order things happen in."""

import random

import pytest

from weft.serverless.pipeline import Bound, Pipeline, Spot, TooOld, epoch_steps
from weft_function.request import Kind

SCHEDULES = 100_000


class World:
    """Servers whose pipelines are driven in a random order: messages between them are late by any time."""

    def __init__(self, rng: random.Random, staleness: int | None, servers: int, intervals: int, epochs: int) -> None:
        self.rng, self.staleness = rng, staleness
        spots = [Spot(server, interval) for server in range(servers) for interval in range(intervals)]
        some = [[{spot for spot in spots if rng.random() < 0.6} for _ in range(intervals)] for _ in range(2 * servers)]
        self.steps = epoch_steps(2)
        self.pipelines = [
            Pipeline(server, self.steps, Bound(staleness), epochs, some[2 * server], some[2 * server + 1])
            for server in range(servers)
        ]
        self.running: list[tuple[int, int, int, object]] = []
        self.inboxes: dict[tuple[int, int], list[tuple[object, ...]]] = {}  # messages from one to another, in order
        self.done = [0] * (epochs + 2)  # intervals that have completed an epoch
        self.total = servers * intervals
        self.oldest_read, self.most_ahead = 0, 0

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
                self.pipelines[reader].wrote(*self.inboxes[sender, reader].pop(0))  # type: ignore[arg-type]

    def end(self, server: int, interval: int, epoch: int, step) -> None:  # type: ignore[no-untyped-def]
        pipeline = self.pipelines[server]
        if step.kind in (Kind.GATHER, Kind.GATHER_BACK):
            ages = pipeline.check_ages(interval, step)
            if ages:
                self.oldest_read = max(self.oldest_read, epoch - min(ages.values()))
        if step.kind in (Kind.SCATTER, Kind.SCATTER_BACK):
            spot = Spot(server, interval)
            for other in range(len(self.pipelines)):
                message = (step.kind, step.stage, spot, epoch)
                if other == server:
                    pipeline.wrote(*message)
                else:
                    self.inboxes.setdefault((server, other), []).append(message)
        if pipeline.finish(interval):
            self.done[epoch] += 1
            finished = next(e for e in range(1, len(self.done)) if self.done[e] < self.total) - 1
            self.most_ahead = max(self.most_ahead, epoch - finished)
            if self.done[epoch] == self.total:
                for other in self.pipelines:
                    other.updated(finished)


@pytest.mark.parametrize("staleness", [None, 0, 1, 2])
def test_staleness_over_many_schedules(staleness: int | None) -> None:
    """Ages are asserted at each gathering, as in a run; and bounds are reached, so that they mean something."""
    rng = random.Random(7)
    oldest = ahead = 0
    for _ in range(SCHEDULES // 4):
        world = World(rng, staleness, rng.choice((1, 2)), rng.choice((1, 2)), epochs=3)
        world.run()
        oldest, ahead = max(oldest, world.oldest_read), max(ahead, world.most_ahead)
    allowed = 0 if staleness is None else staleness
    assert ahead <= allowed + 1
    assert oldest == (0 if staleness is None else min(allowed + 1, 2))  # three epochs have no older one to read


def test_a_scheduler_that_does_not_wait_is_caught() -> None:
    """The gate that is asserted at gatherings does not trust the order that steps were handed out in."""
    pipeline = Pipeline(0, epoch_steps(2), Bound(None), 2, [{Spot(1, 0)}], [set()])
    step = next(step for step in pipeline.steps if step.kind is Kind.GATHER)
    with pytest.raises(TooOld, match="epoch 1 would read"):
        pipeline.check_ages(0, step)
    pipeline.wrote(Kind.SCATTER, 0, Spot(1, 0), 1)
    assert pipeline.check_ages(0, step) == {Spot(1, 0): 1}


def test_intervals_run_ahead_of_the_weights_only_as_many_as_told() -> None:
    pipeline = Pipeline(0, epoch_steps(1), Bound(1), 3, [set()] * 3, [set()] * 3)

    def begun(ahead: int | None) -> list[tuple[int, int]]:
        return [(interval, epoch) for interval, epoch, _ in pipeline.ready(ahead)]

    assert begun(0) == [(0, 1), (1, 1), (2, 1)]  # nothing is missing from the weights of the first
    for interval in range(3):
        pipeline.finish(interval)
    assert begun(0) == []
    assert begun(2) == [(0, 2), (1, 2)]
    assert begun(None) == [(2, 2)]
    for interval in range(3):
        pipeline.finish(interval)
    assert begun(None) == []  # the update of the first epoch, which the bound asks for, is missing
    pipeline.updated(2)
    assert begun(0) == [(0, 3), (1, 3), (2, 3)]


def test_exact_from_an_epoch_on() -> None:
    bound = Bound(2, exact_from=5)
    assert [bound.oldest(epoch) for epoch in (1, 2, 4, 5, 6)] == [1, 1, 1, 5, 6]
    assert [bound.needs_updates(epoch) for epoch in (1, 4, 5, 6)] == [0, 1, 4, 5]


def test_nine_kinds() -> None:
    """All nine kinds of tasks exist; eight are steps of intervals, and the last one is the update."""
    steps = epoch_steps(3, edge_stages=(1, 2))
    assert {step.kind for step in steps} | {Kind.UPDATE} == set(Kind)
    assert len(Kind) == 9 and len(set(steps)) == len(steps)
