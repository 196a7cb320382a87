"""Exactly once: kills, hedges, duplicates and delays change nothing, and without the ledger they would."""

import random
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.serverless.cases import CASES, Killing, pipelined, some_shards
from weft.comm import Communicator
from weft.serverless.autotuner import Autotuner
from weft.serverless.dispatch import Dispatcher, Failed, RetryPolicy
from weft.serverless.invoker import InlineInvoker, Lost, Throttled, Usage
from weft.serverless.invokers import make_invoker
from weft.serverless.ledger import Ledger
from weft.serverless.settings import ExecutorConfig
from weft.serverless.stash import WeightStash
from weft_function.handler import handle
from weft_function.program import Op, Program
from weft_function.task import Request, Response, TaskId, TaskKind

HERE = ExecutorConfig(intervals=4)


class Unreliable:
    """Does tasks in a thread, in any order, some of them late, some twice, some not at all."""

    name = "unreliable"

    def __init__(self, seed: int, lost: float = 0.1, throttled: float = 0.05, slow: float = 0.03) -> None:
        self._rng, self._chances = random.Random(seed), (lost, throttled, slow)
        self._timers: list[threading.Timer] = []
        self.attempts = 0

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        future: Future[Response] = Future()
        self.attempts += 1
        lost, throttled, slow = self._chances
        draw, delay = self._rng.random(), self._rng.random() * 0.004
        if draw < lost:
            self._later(delay, lambda: future.set_exception(Lost("killed")))
        elif draw < lost + throttled:
            future.set_exception(Throttled("too many"))
        else:
            answer = handle(request, "somewhere")
            late = 0.3 if draw > 1 - slow else delay
            self._later(late, lambda: future.set_result(answer))
        return future

    def _later(self, seconds: float, what) -> None:  # type: ignore[no-untyped-def]
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()

    def scale(self, workers: int) -> None: ...

    def usage(self) -> Usage:
        return Usage(attempts=self.attempts)

    def close(self) -> None: ...


def run(config: ExecutorConfig = HERE, make=None, name: str = "gcn-three", epochs: int = 10):  # type: ignore[no-untyped-def]
    return pipelined(Communicator.alone(), some_shards(1), CASES[name], epochs, config, make)


def same(one, other) -> bool:  # type: ignore[no-untyped-def]
    weights = all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    return one["losses"] == other["losses"] and weights


@pytest.mark.parametrize("name", ["gcn-three", "gat"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serverless.executor.RetryPolicy", _Hasty)
    found = run(make=lambda config, trust: Unreliable(seed), name=name)
    assert same(run(name=name), found)
    assert found["waste"]["retries"] > 0 and found["waste"]["hedges"] > 0


class _Hasty(RetryPolicy):
    """Hedges early and often."""

    def __new__(cls, *args: object, **settings: object) -> RetryPolicy:  # type: ignore[misc]
        return RetryPolicy(floor_seconds=1.0, hedge_times_p95=1.5, hedge_share=1.0, max_attempts=50, min_samples=8)


def test_without_the_ledger_it_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with duplicates: with the ledger nothing changes; with it off the run breaks or is wrong."""
    landed = Dispatcher.finish_attempt

    def twice(self, event) -> None:  # type: ignore[no-untyped-def]
        landed(self, event)
        self._num_running += 1
        event.task.running += 1
        landed(self, event)

    wanted = run()
    monkeypatch.setattr(Dispatcher, "finish_attempt", twice)
    assert same(wanted, run())
    monkeypatch.setattr(Ledger, "accept_response", lambda self, task: True)
    try:
        found = run()
    except AssertionError:
        return  # a step that was finished twice
    assert not same(wanted, found)


def test_a_share_counts_once() -> None:
    ledger = Ledger()
    assert ledger.accept_gradients(1, 3) and not ledger.accept_gradients(1, 3) and ledger.accept_gradients(2, 3)
    ledger.close_epoch(1)
    assert not ledger.accept_gradients(1, 4) and ledger.state() == {"closed": 1}
    assert ledger.num_rejected == 2


def test_kept_things_do_not_grow() -> None:
    ledger = Ledger()
    for epoch in range(1, 50):
        task = TaskId("run", epoch, 0, 0, 0, TaskKind.APPLY_VERTEX)
        ledger.begin(task)
        assert ledger.accept_response(task) and not ledger.accept_response(task)
        ledger.close_epoch(epoch)
    assert not ledger._done and not ledger._running


def test_stash_keeps_what_is_held() -> None:
    stash = WeightStash({"w": np.zeros(2)})
    first = stash.acquire()
    stash.add(1, {"w": np.ones(2)})
    stash.add(2, {"w": np.full(2, 2.0)})
    assert stash.num_versions == 2 and (stash.get(first)["w"] == 0).all()
    stash.release(first)
    assert stash.num_versions == 1 and stash.newest == 2
    with pytest.raises(ValueError, match="read-only"):
        stash.get(2)["w"][0] = 5


@pytest.mark.slow
def test_fifty_kills() -> None:
    """Workers of a pool end with SIGKILL at fifty random points: the same weights, to the bit."""
    config = ExecutorConfig(name="pool", intervals=6, workers=3, placement="functions", delay_ms=10)
    killing = Killing(50, tasks_between=10)
    with killing.during(lambda: killing.invoker.processes):
        found = run(config, killing.make, "gat", epochs=25)
    assert killing.kills == 50
    assert found["waste"]["retries"] > 0
    assert same(run(replace_intervals(6), name="gat", epochs=25), found)
    deadline = time.monotonic() + 10
    while killing.invoker.processes and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not killing.invoker.processes


def replace_intervals(count: int) -> ExecutorConfig:
    return HERE.model_copy(update={"intervals": count})


def test_a_task_that_cannot_be_done_is_said() -> None:
    events: list[object] = []
    dispatcher = Dispatcher(InlineInvoker(), events.append, lambda id: True)
    program = Program(("x",), ("y",), (Op("linear", ("x",), "y", ("w",)),))
    task = TaskId("run", 1, 0, 0, 0, TaskKind.APPLY_VERTEX)
    request = Request(task, "forward", program, 0, {"w": np.zeros((2, 3))}, {"x": np.zeros((4, 5))})
    with pytest.raises(ValueError, match="matmul"):
        dispatcher.submit(request, lambda answer: None)
    lost = Unreliable(0, lost=1.0)
    dispatcher = Dispatcher(lost, events.append, lambda id: True, policy=RetryPolicy(max_attempts=2))
    dispatcher.submit(replace(request, tensors={"x": np.zeros((4, 3))}), lambda answer: None)
    with pytest.raises(Failed, match="was lost 2 times"):
        while True:
            time.sleep(0.01)
            while events:
                dispatcher.finish_attempt(events.pop(0))


def test_functions_are_added_while_a_queue_grows() -> None:
    config = ExecutorConfig(name="pool", intervals=16, workers=1, most_workers=3, placement="functions", delay_ms=60)
    pools = []

    def make(config, trust):  # type: ignore[no-untyped-def]
        pools.append(make_invoker(config, trust))
        return pools[-1]

    found = run(config, make, epochs=8)
    assert pools[0].usage().max_workers == 3
    assert same(run(replace_intervals(16), epochs=8), found)


def test_number_of_workers_follows_the_queue() -> None:
    tuner = Autotuner(2, 6)
    for _ in range(30):
        grown = tuner.observe(num_queued=40, num_running=2)
    assert grown == 6
    for _ in range(30):
        shrunk = tuner.observe(num_queued=0, num_running=1)
    assert shrunk == 2
