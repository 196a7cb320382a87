"""Attempts at tasks: deadlines, second tries, hedges, fewer at a time where the other side is throttled.

A task has one attempt, another when that is lost, and at most one hedge beside a slow one; the first answer counts and
whatever comes after it is waste, which is counted, too. Nothing here waits: the caller asks when to look again.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from weft.errors import UserError
from weft.serverless.invoker import Invoker, Lost, Throttled
from weft_function.request import Answer, Kind, Request, TaskId


@dataclass(frozen=True)
class Patience:
    """When an attempt is taken for slow or lost."""

    floor_seconds: float = 5.0
    times_p95: float = 10.0  # the deadline, in multiples of what 95 of 100 took
    hedge_times_p95: float = 3.0
    hedge_share: float = 0.05  # of all tasks that may be hedged
    most_attempts: int = 8
    window: int = 256  # tasks of a kind that the percentile is taken over
    least: int = 20  # tasks before a percentile means anything


@dataclass
class Waste:
    """What was done in vain."""

    hedges: int = 0
    seconds: float = 0.0  # of functions whose answer was not used
    retries: int = 0

    def __sub__(self, other: "Waste") -> "Waste":
        return Waste(self.hedges - other.hedges, self.seconds - other.seconds, self.retries - other.retries)


@dataclass
class _Open:
    request: Request
    then: Callable[[Answer], None]
    attempts: int = 0
    flying: int = 0
    hedged: bool = False
    since: float = 0.0


class Failed(RuntimeError):
    """A task that failed as often as it was allowed to, or whose function says that it cannot be done."""


class Dispatcher:
    """Sends requests to an invoker and hands each one's first answer on, in the caller's thread.

    `events` is where finished attempts are put, from any thread; the caller takes them out and calls `landed`.
    """

    def __init__(
        self,
        invoker: Invoker,
        events: Callable[[object], None],
        accept: Callable[[TaskId], bool],
        clock: Callable[[], float] = time.monotonic,
        most_at_once: int = 64,
        patience: Patience = Patience(),
    ) -> None:
        """`accept` says of a task whether an answer is its first; no other is handed on."""
        self._invoker, self._events, self._clock, self._patience = invoker, events, clock, patience
        self._accept = accept
        self._most, self._allowed = most_at_once, float(most_at_once)
        self._open: dict[TaskId, _Open] = {}
        self._queue: deque[TaskId] = deque()
        self._flying = 0
        self._took: dict[Kind, _Took] = {}
        self._hold_until = 0.0
        self.waste, self.tasks = Waste(), 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> int:
        """Attempts under way."""
        return self._flying

    @property
    def idle(self) -> int:
        """Workers that have nothing to do, not even something on its way to them."""
        return 0 if self._queue else max(0, self.allowed // 2 - self._flying)

    def scale(self, workers: int) -> None:
        """Wants so many workers, each of which gets two attempts: one to work on, one that travels meanwhile."""
        if 2 * workers != self._most:
            self._most = 2 * workers
            self._allowed = float(self._most)
            self._invoker.scale(workers)

    @property
    def allowed(self) -> int:
        """Attempts that may fly at once."""
        return max(1, int(self._allowed))

    def submit(self, request: Request, then: Callable[[Answer], None]) -> None:
        assert request.id not in self._open, "a task is submitted once"
        self._open[request.id] = _Open(request, then, since=self._clock())
        self._queue.append(request.id)
        self._send()

    def landed(self, event: object) -> None:
        """An attempt has ended."""
        assert isinstance(event, Landed)
        self._flying -= 1
        task, error = event.task, event.future.exception()
        id = task.request.id
        task.flying -= 1
        if error is None:
            answer = event.future.result()
            self._remember(id.kind, self._clock() - event.started)
            if self._accept(id):
                self._open.pop(id, None)
                self.tasks += 1
                task.then(answer)
            else:
                self.waste.seconds += answer.seconds
        elif id in self._open:
            self._again(id, task, error)
        self._send()

    def tick(self) -> None:
        """Hedges what is slow, and sends what was held back."""
        now = self._clock()
        for key, task in list(self._open.items()):
            limit = self._hedge_after(task.request.id.kind)
            if task.flying == 1 and not task.hedged and limit is not None and now - task.since >= limit:
                if self.waste.hedges + 1 > self._patience.hedge_share * max(self.tasks, self._patience.least):
                    continue
                task.hedged = True
                self.waste.hedges += 1
                self._queue.appendleft(key)
        self._send()

    def look_again_in(self) -> float | None:
        """Seconds until `tick` may have something to do; None: nothing to wait for."""
        now, times = self._clock(), []
        if self._queue and self._hold_until > now:
            times.append(self._hold_until - now)
        for task in self._open.values():
            limit = self._hedge_after(task.request.id.kind)
            if limit is not None and task.flying == 1 and not task.hedged:
                times.append(max(0.001, task.since + limit - now))
        return min(times, default=None)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._queue and self._flying < self.allowed and self._clock() >= self._hold_until:
            key = self._queue.popleft()
            task = self._open.get(key)
            if task is None:
                continue
            if not task.flying:
                task.since = self._clock()
            task.attempts += 1
            task.flying += 1
            self._flying += 1
            future = self._invoker.submit(task.request, self._deadline(task.request.id.kind))
            started = self._clock()
            future.add_done_callback(partial(self._landing, task, started))

    def _landing(self, task: "_Open", started: float, future: "Future[Answer]") -> None:
        self._events(Landed(task, started, future))

    def _again(self, id: TaskId, task: "_Open", error: BaseException) -> None:
        if isinstance(error, Throttled):
            self._allowed = max(1.0, self._allowed / 2)
            self._hold_until = self._clock() + 0.05 * (1 + task.attempts)
            task.attempts -= 1
        elif isinstance(error, UserError):
            raise error
        elif not isinstance(error, Lost):
            raise Failed(f"task {tuple(id)} cannot be done: {error}") from error
        if task.attempts >= self._patience.most_attempts:
            raise Failed(f"task {tuple(id)} was lost {task.attempts} times: {error}") from error
        if not task.flying:
            self.waste.retries += not isinstance(error, Throttled)
            self._queue.append(id)

    def _remember(self, kind: Kind, seconds: float) -> None:
        self._took.setdefault(kind, _Took(self._patience)).add(seconds)
        self._allowed = min(self._most, self._allowed + 1 / self._allowed)

    def _p95(self, kind: Kind) -> float | None:
        return self._took[kind].p95 if kind in self._took else None

    def _deadline(self, kind: Kind) -> float:
        p95 = self._p95(kind)
        most = 60.0 if p95 is None else self._patience.times_p95 * p95
        return max(self._patience.floor_seconds, most)

    def _hedge_after(self, kind: Kind) -> float | None:
        p95 = self._p95(kind)
        return None if p95 is None else self._patience.hedge_times_p95 * p95


@dataclass(frozen=True)
class Landed:
    """An attempt that has ended."""

    task: _Open = field(repr=False)
    started: float
    future: "Future[Answer]" = field(repr=False)


class _Took:
    """How long tasks of one kind took lately."""

    def __init__(self, patience: Patience) -> None:
        self._seconds: deque[float] = deque(maxlen=patience.window)
        self._least, self._count = patience.least, 0
        self.p95: float | None = None

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._count += 1
        if self._count >= self._least and self._count % 8 == 0:
            self.p95 = sorted(self._seconds)[math.ceil(0.95 * len(self._seconds)) - 1]


class Tuner:
    """How many workers: more where looks at the queue find it long or growing, fewer where they find workers idle."""

    def __init__(self, least: int, most: int, patience: int = 3) -> None:
        self.workers, self._least, self._most, self._patience = least, least, most, patience
        self._before = self._score = 0

    def look(self, queued: int, busy: int) -> int:
        """`queued`: tasks that nobody works on; `busy`: those that somebody does. How many workers there should be."""
        if queued > 2 * self.workers or queued > self._before:
            self._score += 1
        elif not queued and busy < self.workers:
            self._score -= 1
        self._before = queued
        if self._score >= self._patience:
            self.workers, self._score = min(self._most, self.workers + max(1, self.workers // 4)), 0
        elif self._score <= -self._patience:
            self.workers, self._score = max(self._least, self.workers - 1), 0
        return self.workers
