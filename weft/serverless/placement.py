"""Which tasks are worth sending: those whose product costs the server more than their way does.

A task done here takes the server's time for as long as it lasts. A task sent takes the server's time to pack and
unpack it, and the way's time to carry its bytes; the function's own time is nobody's loss as long as there are enough
of them. Both are measured, a few tasks of each kind on each side first, then again now and then.
"""

from collections import defaultdict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from weft.serverless.invoker import InlineInvoker, Invoker, Usage
from weft_function.request import Answer, Kind, Request

TRIES = 3  # of each kind on each side before anything is concluded
LOOK_AGAIN = 64  # every so many tasks one goes the other way


@dataclass
class _Seen:
    here: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    there: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    count: int = 0


class Placed:
    """An invoker that does some tasks here and has others done there."""

    def __init__(self, there: Invoker, workers: int) -> None:
        self.name = there.name
        self._here, self._there, self._workers = InlineInvoker(), there, workers
        self._seen: dict[tuple[Kind, int, int], _Seen] = defaultdict(_Seen)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        seen = self._seen[request.id.kind, request.id.stage, _magnitude(request)]
        seen.count += 1
        if self._goes(seen):
            started = perf_counter()
            future = self._there.submit(request, deadline_seconds)
            future.add_done_callback(lambda done: self._landed(seen, started, done))
            return future
        started = perf_counter()
        future = self._here.submit(request, deadline_seconds)
        seen.here.append(perf_counter() - started)
        return future

    def _goes(self, seen: _Seen) -> bool:
        if len(seen.there) < TRIES or len(seen.here) < TRIES:
            return len(seen.there) + (seen.count - len(seen.here) - len(seen.there)) <= len(seen.here)
        goes = median(seen.there) < median(seen.here)
        return goes != (seen.count % LOOK_AGAIN == 0)

    def _landed(self, seen: _Seen, started: float, done: "Future[Answer]") -> None:
        if done.exception() is None:
            function = done.result().seconds
            # What the way took, and this task's share of the functions' time.
            seen.there.append(max(0.0, perf_counter() - started - function) + function / max(1, self._workers))

    def scale(self, workers: int) -> None:
        self._workers = workers
        self._there.scale(workers)

    def usage(self) -> Usage:
        return self._there.usage()

    def close(self) -> None:
        self._there.close()


def _magnitude(request: Request) -> int:
    """Tasks of about the same size are alike."""
    return sum(tensor.nbytes for tensor in request.tensors.values()).bit_length()
