"""Attempts that wait for a worker or for its response, and which workers have failed which tasks."""

from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass

from weft.serverless.responses import ExpectedResponse
from weft_function.task import Request, Response, TaskId

REMEMBERED_FAILURES = 1024  # tasks whose failed workers are remembered


@dataclass
class PendingAttempt:
    number: int
    request: Request
    future: "Future[Response]"
    deadline: float  # monotonic
    expected: ExpectedResponse
    weights_resent: bool = False  # because the worker did not have them in its cache


class PendingAttempts:
    """Attempts by number: first queued, then assigned to a worker, until they are completed or given up."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingAttempt] = {}
        self._queue: deque[int] = deque()
        self._failed_by: OrderedDict[TaskId, set[str]] = OrderedDict()  # leases of workers

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, number: object) -> bool:
        return number in self._pending

    def __getitem__(self, number: int) -> PendingAttempt:
        return self._pending[number]

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def add(self, attempt: PendingAttempt) -> None:
        self._pending[attempt.number] = attempt
        self._queue.append(attempt.number)

    def requeue(self, number: int) -> None:
        """Puts an assigned attempt back to the front of the queue."""
        self._queue.appendleft(number)

    def next_queued(self) -> PendingAttempt | None:
        """Removes the first attempt from the queue; None if it was given up meanwhile."""
        return self._pending.get(self._queue.popleft())

    def succeed(self, number: int, response: Response) -> None:
        attempt = self._pending.pop(number)
        self._failed_by.pop(attempt.request.id, None)
        attempt.future.set_result(response)

    def fail(self, number: int, error: Exception, lease: str | None = None) -> None:
        """Ends an attempt with an error. `lease`: of the worker that failed; another worker should try the task."""
        attempt = self._pending.pop(number)
        if lease is not None:
            self._failed_by.setdefault(attempt.request.id, set()).add(lease)
            while len(self._failed_by) > REMEMBERED_FAILURES:
                self._failed_by.popitem(last=False)
        attempt.future.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        for number in list(self._pending):
            self.fail(number, error)

    def failed_by(self, task: TaskId) -> set[str]:
        return self._failed_by.get(task, set())

    def expired(self, now: float) -> list[int]:
        return [number for number, attempt in self._pending.items() if attempt.deadline <= now]

    def deadlines(self) -> list[float]:
        return [attempt.deadline for attempt in self._pending.values()]
