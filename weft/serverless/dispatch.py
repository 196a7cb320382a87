"""Dispatches tasks to an invoker: deadlines, retries, hedges, and fewer attempts at once under throttling.

A task has one attempt at a time, and at most one hedge beside a slow attempt. The first response is used; the time of
later ones is counted as waste. Nothing here blocks: the caller asks when to call `tick` again.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from weft.errors import UserError
from weft.serverless.invoker import DEADLINE_SECONDS, Invoker, Lost, Throttled
from weft.serverless.latency import FinishedTask, finished_task
from weft_function.task import Request, Response, TaskId, TaskKind

GRACE_SECONDS = 10.0  # after its deadline, within which an invoker must report that an attempt is lost
THROTTLED_SECONDS = 0.05  # without new attempts, times the number of the attempt
MIN_WAIT_SECONDS = 0.001
PERCENTILE_EVERY = 8  # tasks between two computations of the percentile


@dataclass(frozen=True)
class RetryPolicy:
    """When an attempt counts as slow or lost."""

    deadline_seconds: float = DEADLINE_SECONDS  # the longest that any attempt may take
    first_share: float = 0.25  # of it, for tasks of a kind whose latency is not known yet
    floor_seconds: float = 5.0
    times_p95: float = 10.0  # the deadline, in multiples of the 95th percentile of the latency
    hedge_times_p95: float = 3.0
    hedge_share: float = 0.05  # of all tasks that may be hedged
    max_attempts: int = 8
    window: int = 256  # latest tasks of a kind, from which the percentile is computed
    min_samples: int = 20  # before there is a percentile


@dataclass
class Waste:
    """Work whose result was not used."""

    hedges: int = 0
    seconds: float = 0.0  # of functions
    retries: int = 0

    def __sub__(self, other: "Waste") -> "Waste":
        return Waste(self.hedges - other.hedges, self.seconds - other.seconds, self.retries - other.retries)


@dataclass
class PendingTask:
    """A task without a response so far."""

    request: Request
    on_response: Callable[[Response], None]
    attempts: int = 0
    running: int = 0  # attempts
    hedged: bool = False
    since: float = 0.0  # when it was queued, or the first of its running attempts started


@dataclass(frozen=True)
class Attempt:
    """A running or finished attempt. A finished attempt is an event of the dispatcher."""

    task: PendingTask = field(repr=False)
    started: float
    future: "Future[Response]" = field(repr=False)
    abandon_at: float = math.inf


class Failed(RuntimeError):
    """A task that has failed in all of its attempts, or that its function cannot compute."""


class Dispatcher:
    """Submits requests to an invoker and passes on the first response of each task, in the caller's thread.

    Finished attempts are passed to `post_event`, from any thread; the caller must then call `finish_attempt`.
    """

    def __init__(
        self,
        invoker: Invoker,
        post_event: Callable[[Attempt], None],
        accept: Callable[[TaskId], bool],
        clock: Callable[[], float] = time.monotonic,
        max_attempts_at_once: int = 64,
        policy: RetryPolicy = RetryPolicy(),
    ) -> None:
        """`accept`: whether a response is the first one of its task; other responses are dropped."""
        self._invoker, self._post_event, self._clock, self._policy = invoker, post_event, clock, policy
        self._accept = accept
        self._max_at_once, self._limit = max_attempts_at_once, float(max_attempts_at_once)
        self._pending: dict[TaskId, PendingTask] = {}
        self._queue: deque[TaskId] = deque()
        self._num_running = 0
        self._latencies: dict[TaskKind, _Latencies] = {}
        self._hold_until = 0.0  # no new attempts before, because of throttling
        self._running: dict[Future[Response], Attempt] = {}
        self._abandoned: set[Future[Response]] = set()
        self.waste, self.num_done = Waste(), 0
        self._finished: list[FinishedTask] = []

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Running attempts."""
        return self._num_running

    @property
    def limit(self) -> int:
        """How many attempts may run at once."""
        return max(1, int(self._limit))

    def take_finished(self) -> list[FinishedTask]:
        """The tasks that have finished since the last call."""
        taken, self._finished = self._finished, []
        return taken

    def scale(self, workers: int) -> None:
        """Sets the number of workers. Each gets two attempts, so that one travels while it computes the other."""
        if 2 * workers != self._max_at_once:
            self._max_at_once = 2 * workers
            self._limit = float(self._max_at_once)
            self._invoker.scale(workers)

    def submit(self, request: Request, on_response: Callable[[Response], None]) -> None:
        assert request.id not in self._pending, "a task is submitted once"
        self._pending[request.id] = PendingTask(request, on_response, since=self._clock())
        self._queue.append(request.id)
        self._start_attempts()

    def finish_attempt(self, attempt: Attempt) -> None:
        """Handles the end of an attempt: passes on a first response, retries a lost attempt."""
        task, error = attempt.task, attempt.future.exception()
        id = task.request.id
        self._running.pop(attempt.future, None)
        if attempt.future in self._abandoned:
            self._abandoned.remove(attempt.future)
            if error is not None:
                return
        else:
            self._num_running -= 1
            task.running -= 1
        if error is None:
            response = attempt.future.result()
            self._record_latency(id.kind, self._clock() - attempt.started)
            if self._accept(id):
                self._pending.pop(id, None)
                self.num_done += 1
                self._finished.append(finished_task(id.kind, response, self._clock() - attempt.started))
                task.on_response(response)
            else:
                self.waste.seconds += response.seconds
        elif id in self._pending:
            self._retry(task, error)
        self._start_attempts()

    def tick(self) -> None:
        """Hedges slow tasks, abandons attempts that never end, and starts attempts that were held back."""
        now = self._clock()
        for attempt in [one for one in self._running.values() if one.abandon_at <= now]:
            self._abandon(attempt)
        for id, task in list(self._pending.items()):
            after = self._hedge_seconds(id.kind)
            if task.running == 1 and not task.hedged and after is not None and now - task.since >= after:
                if self.waste.hedges + 1 > self._policy.hedge_share * max(self.num_done, self._policy.min_samples):
                    continue
                task.hedged = True
                self.waste.hedges += 1
                self._queue.appendleft(id)
        self._start_attempts()

    def seconds_to_tick(self) -> float | None:
        """Seconds until `tick` may have something to do; None: nothing is pending."""
        now, times = self._clock(), []
        if self._running:
            times.append(max(MIN_WAIT_SECONDS, min(one.abandon_at for one in self._running.values()) - now))
        if self._queue and self._hold_until > now:
            times.append(self._hold_until - now)
        for task in self._pending.values():
            after = self._hedge_seconds(task.request.id.kind)
            if after is not None and task.running == 1 and not task.hedged:
                times.append(max(MIN_WAIT_SECONDS, task.since + after - now))
        return min(times, default=None)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _start_attempts(self) -> None:
        while self._queue and self._num_running < self.limit and self._clock() >= self._hold_until:
            task = self._pending.get(self._queue.popleft())
            if task is None:
                continue
            if not task.running:
                task.since = self._clock()
            task.attempts += 1
            task.running += 1
            self._num_running += 1
            seconds = self._deadline(task)
            future = self._invoker.submit(task.request, seconds)
            started = self._clock()
            attempt = self._running[future] = Attempt(task, started, future, started + seconds + GRACE_SECONDS)
            future.add_done_callback(lambda _, attempt=attempt: self._post_event(attempt))  # type: ignore[misc]

    def _abandon(self, attempt: Attempt) -> None:
        """Gives up an attempt whose invoker has not even reported that it is lost, so that every wait is bounded."""
        del self._running[attempt.future]
        self._abandoned.add(attempt.future)
        self._num_running -= 1
        attempt.task.running -= 1
        if attempt.task.request.id in self._pending:
            self._retry(attempt.task, Lost("the invoker did not report its end"))

    def _retry(self, task: PendingTask, error: BaseException) -> None:
        """Queues a task again after an attempt has ended with `error`; raises if no further attempt may help."""
        id = task.request.id
        if isinstance(error, Throttled):
            self._limit = max(1.0, self._limit / 2)
            self._hold_until = self._clock() + THROTTLED_SECONDS * (1 + task.attempts)
            task.attempts -= 1
        elif isinstance(error, UserError):
            raise error
        elif not isinstance(error, Lost):
            raise Failed(f"task {tuple(id)} cannot be done: {error}") from error
        if task.attempts >= self._policy.max_attempts:
            raise Failed(f"task {tuple(id)} was lost {task.attempts} times: {error}") from error
        if not task.running:
            self.waste.retries += not isinstance(error, Throttled)
            self._queue.append(id)

    # -- latency ------------------------------------------------------------------------------------------------------

    def _record_latency(self, kind: TaskKind, seconds: float) -> None:
        self._latencies.setdefault(kind, _Latencies(self._policy)).add(seconds)
        self._limit = min(self._max_at_once, self._limit + 1 / self._limit)

    def _p95(self, kind: TaskKind) -> float | None:
        return self._latencies[kind].p95 if kind in self._latencies else None

    def _deadline(self, task: PendingTask) -> float:
        """How long the next attempt may take. It doubles with each attempt, since a task may be inherently slow."""
        policy, p95 = self._policy, self._p95(task.request.id.kind)
        longest = policy.deadline_seconds
        first = policy.first_share * longest if p95 is None else max(policy.floor_seconds, policy.times_p95 * p95)
        return float(min(longest, first * 2 ** (task.attempts - 1)))

    def _hedge_seconds(self, kind: TaskKind) -> float | None:
        """After how long a task of this kind is hedged; None: not yet known."""
        p95 = self._p95(kind)
        return None if p95 is None else self._policy.hedge_times_p95 * p95


class _Latencies:
    """The latest latencies of one kind of task, and their 95th percentile."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._seconds: deque[float] = deque(maxlen=policy.window)
        self._min_samples, self._count = policy.min_samples, 0
        self.p95: float | None = None

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._count += 1
        if self._count >= self._min_samples and self._count % PERCENTILE_EVERY == 0:
            self.p95 = sorted(self._seconds)[math.ceil(0.95 * len(self._seconds)) - 1]
