"""Decides which tasks are sent to functions: those that would cost the graph server more time than sending them.

A local task occupies the server for as long as it runs. A remote task occupies it for packing, sending and unpacking;
the function's own time counts only as far as functions are scarce. Both are measured per kind, stage and size of tasks:
first with a few tasks on each side, then with one now and then.
"""

from collections import defaultdict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from weft.serverless.invoker import InlineInvoker, Invoker, Usage
from weft_function.task import Request, Response, TaskKind

SAMPLES = 9  # latest measurements on each side, of which the median counts
MIN_SAMPLES = 3  # on each side before the faster one is chosen
EXPLORE_EVERY = 64  # tasks, of which one goes to the slower side


def _samples() -> "deque[float]":
    return deque(maxlen=SAMPLES)


@dataclass
class _Timings:
    """Seconds of tasks of one kind, stage and size."""

    local: deque[float] = field(default_factory=_samples)
    remote: deque[float] = field(default_factory=_samples)
    count: int = 0


class PlacingInvoker:
    """Runs each task inline or with another invoker, whichever is faster."""

    def __init__(self, remote: Invoker, workers: int) -> None:
        self.name = remote.name
        self._local, self._remote, self._workers = InlineInvoker(), remote, workers
        self._timings: dict[tuple[TaskKind, int, int], _Timings] = defaultdict(_Timings)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        timings = self._timings[request.id.kind, request.id.stage, _size_class(request)]
        timings.count += 1
        started = perf_counter()
        if self._sends(timings):
            future = self._remote.submit(request, deadline_seconds)
            future.add_done_callback(lambda done: self._record_remote(timings, started, done))
            return future
        future = self._local.submit(request, deadline_seconds)
        timings.local.append(perf_counter() - started)
        return future

    def _sends(self, timings: _Timings) -> bool:
        if len(timings.remote) < MIN_SAMPLES or len(timings.local) < MIN_SAMPLES:
            sent = len(timings.remote) + (timings.count - len(timings.local) - len(timings.remote))
            return sent <= len(timings.local)
        sends = median(timings.remote) < median(timings.local)
        return sends != (timings.count % EXPLORE_EVERY == 0)

    def _record_remote(self, timings: _Timings, started: float, done: "Future[Response]") -> None:
        if done.exception() is None:
            computing = done.result().seconds
            # The time of sending, and this task's share of the functions' time.
            sending = max(0.0, perf_counter() - started - computing)
            timings.remote.append(sending + computing / max(1, self._workers))

    def scale(self, workers: int) -> None:
        self._workers = workers
        self._remote.scale(workers)

    def usage(self) -> Usage:
        return self._remote.usage()

    def close(self) -> None:
        self._remote.close()


def _size_class(request: Request) -> int:
    """The same for requests of about the same size."""
    return sum(tensor.nbytes for tensor in request.tensors.values()).bit_length()
