"""A broker: workers connect and register, and the broker assigns queued attempts to them and checks their responses.

Workers can join and leave at any time. Each has a lease, which names its connection and has its own key. A worker is
assigned two tasks at a time, so that one travels while it computes the other. A response that is not valid fails its
attempt; the dispatcher then retries the task, and another worker is preferred for it.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UserError
from weft.serverless.attempts import PendingAttempt, PendingAttempts
from weft.serverless.connections import Connections
from weft.serverless.invoker import DEADLINE_SECONDS, Lost, Usage
from weft.serverless.leases import Leases
from weft.serverless.responses import OVERHEAD_BYTES, ResponseForms
from weft_function.session import new_key
from weft_function.task import Request, Response, TaskId
from weft_function.task_message import encode_request
from weft_function.wire import Malformed, Message

TASKS_PER_WORKER = 2
MAX_REFUSALS = 3  # messages in a row that are not valid, after which a worker is disconnected
MAX_NAME_LENGTH = 80
MAX_REPORTED_REFUSALS = 1 << 31
LEAVE_SECONDS = 10.0  # for workers to leave before they are killed
LEFT = "the worker has left"


@dataclass
class WorkerState:
    """A worker that has registered."""

    name: str
    lease: str
    attempts: list[int] = field(default_factory=list)  # assigned to it, in the order in which it runs them
    cached_weights: set[tuple[object, ...]] = field(default_factory=set)
    refusals: int = 0  # in a row
    leaving: bool = False  # it was asked to stop


class Broker(Connections):
    """An invoker whose workers connect to it. Subclasses start workers."""

    name = "broker"

    def __init__(
        self, bind: str, key: bytes | None = None, as_bfloat16: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:  # fmt: skip
        """`deadline_seconds`: how long tasks wait for a worker, and workers for a server."""
        super().__init__(bind, as_bfloat16)
        self._deadline = deadline_seconds
        self._usage = Usage()
        self._leases = Leases(key or new_key(), self.address, shared=key is not None)
        self._workers: dict[str, WorkerState] = {}  # by lease
        self._pending = PendingAttempts()
        self._forms = ResponseForms()
        self._num_attempts = self._target_workers = 0
        self._no_worker_since = time.monotonic()
        self._thread.start()

    # -- called from other threads ------------------------------------------------------------------------------------

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        future: Future[Response] = Future()
        expected = self._forms.expected(request)
        with self._lock:
            self._num_attempts += 1
            number = self._num_attempts
        self.post(PendingAttempt(number, request, future, time.monotonic() + deadline_seconds, expected))
        return future

    def scale(self, workers: int) -> None:
        self.post(workers)

    def usage(self) -> Usage:
        with self._lock:
            return Usage(**vars(self._usage))

    # -- overridden by subclasses that start workers ------------------------------------------------------------------

    def _adjust_workers(self) -> None:
        """Starts workers or asks some to leave, until there are `_target_workers`."""

    def _num_started(self) -> int:
        """How many of the workers that this broker started have not ended."""
        return 0

    def _kill_workers(self) -> None:
        """Ends the workers that did not leave when they were asked to."""

    def _no_worker_hint(self) -> str:
        """What the user should do if there is no worker."""
        return f"start some with 'weft worker {self.address}'"

    # -- leases -------------------------------------------------------------------------------------------------------

    def _lease_key(self, lease: str) -> bytes | None:
        return self._leases.key_of(lease)

    def _revoke(self, lease: str, reason: str) -> None:
        self._leases.revoke(lease)
        self._disconnect(lease, reason)

    def _stop_idle_workers(self, leases: Iterable[str], count: int) -> None:
        """Asks up to `count` idle workers to leave; those that are leaving already are included in the count."""
        workers = [self._workers[lease] for lease in leases if lease in self._workers]
        count -= sum(worker.leaving for worker in workers)
        for worker in workers:
            if count > 0 and not worker.attempts and not worker.leaving:
                worker.leaving = True
                count -= 1
                self._send(worker.lease, Message("stop"))
        self._count_workers()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _on_item(self, item: Any) -> None:
        if isinstance(item, int):
            self._target_workers = item
            self._adjust_workers()
        elif isinstance(item, PendingAttempt):
            self._pending.add(item)

    def _on_wakeup(self) -> None:
        self._expire()
        self._assign()

    def _timeout_seconds(self) -> float | None:
        times = self._pending.deadlines() + self._leases.expiries()
        if self._pending and not self._workers:
            times.append(self._no_worker_since + self._deadline)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _shut_down(self, reason: str, failed: bool) -> None:
        self._closed = True
        for item in self._inbox:
            if isinstance(item, PendingAttempt):
                self._pending.add(item)
        self._inbox.clear()
        self._pending.fail_all(RuntimeError(reason) if failed else Lost(reason))
        self._target_workers, until = 0, time.monotonic() + LEAVE_SECONDS
        try:
            for lease in list(self._connected):
                self._send(lease, Message("stop"))
            while not failed and (self._num_started() or self._connected) and time.monotonic() < until:
                self._poll(0.1)  # a worker that registers only now is asked to stop, too
        finally:
            self._kill_workers()

    # -- messages of workers ------------------------------------------------------------------------------------------

    def _on_connected(self, lease: str) -> None:
        self._connected[lease].max_bytes = OVERHEAD_BYTES

    def _on_disconnected(self, lease: str, reason: str) -> None:
        worker = self._workers.pop(lease, None)
        if worker is None:
            return
        self._count_workers()
        for number in worker.attempts:
            self._lose(number, f"{worker.name}: {reason}", lease)

    def _on_message(self, lease: str, message: Message) -> None:
        worker = self._workers.get(lease)
        if message.kind == "register" and worker is None:
            self._register(lease, message)
        elif worker is None:
            raise Malformed("the worker sent a message before it registered")
        elif message.kind == "bye":
            refused = message.fields.get("refused", 0)
            self._count(refused=refused if type(refused) is int and 0 <= refused < MAX_REPORTED_REFUSALS else 0)
            self._disconnect(lease, LEFT)
        elif message.kind in ("response", "failed", "missing_weights"):
            self._on_attempt_message(worker, message)
        else:
            raise Malformed(f"workers do not send messages of kind '{message.kind}'")

    def _on_malformed(self, lease: str, error: Malformed) -> None:
        """The message does not tell which attempt it is about; workers run tasks in order, so the first one fails."""
        worker = self._workers.get(lease)
        if worker is None:
            self._disconnect(lease, str(error))
        else:
            self._refuse_response(worker, worker.attempts[:1], str(error))

    def _refuse_response(self, worker: WorkerState, numbers: list[int], reason: str) -> None:
        """Fails these attempts, and disconnects a worker that has sent too many messages that are not valid."""
        worker.refusals += 1
        for number in numbers:
            worker.attempts.remove(number)
            self._lose(number, f"{worker.name}: its response was refused ({reason})", worker.lease)
        self._limit_message_size(worker)
        if worker.refusals >= MAX_REFUSALS:
            self._disconnect(worker.lease, f"{MAX_REFUSALS} messages in a row were refused")

    def _register(self, lease: str, message: Message) -> None:
        name = message.fields.get("worker")
        worker = WorkerState(name[:MAX_NAME_LENGTH] if isinstance(name, str) else lease, lease)
        self._workers[lease] = worker
        self._limit_message_size(worker)
        self._leases.record_registration(lease)
        self._send(lease, Message("registered", {"deadline_seconds": self._deadline}))
        if self._closed:
            self._send(lease, Message("stop"))
        self._count_workers()
        self._adjust_workers()  # the target may have fallen since this worker was started

    def _on_attempt_message(self, worker: WorkerState, message: Message) -> None:
        number = message.fields.get("attempt")
        if type(number) is not int or number not in worker.attempts:
            raise Malformed("the worker responded to an attempt that is not assigned to it")
        if number in self._pending:  # otherwise it has been given up
            try:
                self._end_attempt(worker, self._pending[number], message)
            except Malformed as error:
                self._count(refused=1)
                self._refuse_response(worker, [number], str(error))
                return
        worker.refusals = 0
        worker.attempts.remove(number)
        self._limit_message_size(worker)

    def _end_attempt(self, worker: WorkerState, attempt: PendingAttempt, message: Message) -> None:
        """Ends or requeues an attempt according to the worker's message; raises Malformed if that is not valid."""
        if message.kind == "missing_weights":
            if attempt.weights_resent:
                raise Malformed("the worker misses weights that were sent to it")
            attempt.weights_resent = True
            worker.cached_weights.clear()
            self._pending.requeue(attempt.number)
            return
        if message.kind == "failed":
            reason = message.fields.get("reason")
            if not isinstance(reason, str):
                raise Malformed("the worker reported a failure without a reason")
            self._pending.fail(attempt.number, RuntimeError(f"{worker.name}: {reason}"))
            return
        seconds = attempt.expected.check(message)
        size = sum(tensor.nbytes for tensor in message.tensors.values())
        self._count(tasks=1, bytes_in=size, task_seconds=seconds)
        self._pending.succeed(attempt.number, Response(dict(message.tensors), seconds, worker.name))

    def _limit_message_size(self, worker: WorkerState) -> None:
        """A worker may send messages as large as the expected responses to its attempts, and no larger."""
        connection = self._connected.get(worker.lease)
        if connection is not None:
            sizes = [self._pending[one].expected.max_bytes for one in worker.attempts if one in self._pending]
            # Responses to attempts that were given up can still arrive.
            previous = connection.max_bytes if len(sizes) < len(worker.attempts) else 0
            connection.max_bytes = max(OVERHEAD_BYTES, previous, *sizes)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Sends queued attempts to the least busy workers, preferring those that have not failed the task before."""
        while self._pending.num_queued and not self._closed:
            free = [
                worker
                for worker in self._workers.values()
                if len(worker.attempts) < TASKS_PER_WORKER and not worker.leaving
            ]
            if not free:
                return
            attempt = self._pending.next_queued()
            if attempt is None:
                continue
            request = attempt.request
            avoided = self._pending.failed_by(request.id) | self._running_on(request.id)
            worker = min(free, key=lambda one: (one.lease in avoided, len(one.attempts)))
            worker.attempts.append(attempt.number)
            self._limit_message_size(worker)
            with_weights = request.weights_key not in worker.cached_weights
            sent = self._send(worker.lease, encode_request(request, attempt.number, with_weights))
            if sent is not None:
                worker.cached_weights.add(request.weights_key)
                self._count(attempts=1, bytes_out=sent)

    def _running_on(self, task: TaskId) -> set[str]:
        """The leases of workers that run this task now: a hedge is useful on another worker only."""
        return {
            worker.lease
            for worker in self._workers.values()
            for number in worker.attempts
            if number in self._pending and self._pending[number].request.id == task
        }

    def _expire(self) -> None:
        """Gives up attempts and revokes leases whose time is over."""
        now = time.monotonic()
        expired = self._pending.expired(now)
        if expired:
            holders = {number: worker for worker in self._workers.values() for number in worker.attempts}
            for number in expired:
                holder = holders.get(number)
                reason = f"no response to task {self._pending[number].request.id} in time"
                self._lose(number, reason, None if holder is None else holder.lease)
                if holder is not None and self._is_stuck(holder):
                    self._disconnect(holder.lease, "the worker does not respond")
        for lease in self._leases.expired(now):
            self._revoke(lease, "its lease has ended")
        if self._workers or not self._pending:
            self._no_worker_since = now
        elif now - self._no_worker_since >= self._deadline:
            hint = self._no_worker_hint()
            self._pending.fail_all(UserError(f"no worker was at {self.address} for {self._deadline:g} s: {hint}"))

    def _is_stuck(self, worker: WorkerState) -> bool:
        """Whether a worker holds as many attempts as it may, all of which have been given up."""
        return len(worker.attempts) >= TASKS_PER_WORKER and not any(one in self._pending for one in worker.attempts)

    def _lose(self, number: int, reason: str, lease: str | None) -> None:
        if number in self._pending:
            self._count(lost=1)
            self._pending.fail(number, Lost(reason), lease)

    # -- counts -------------------------------------------------------------------------------------------------------

    def _count_refused(self) -> None:
        self._count(refused=1)

    def _count_workers(self) -> None:
        with self._lock:
            self._usage.workers = sum(not worker.leaving for worker in self._workers.values())
            self._usage.max_workers = max(self._usage.max_workers, self._usage.workers)

    def _count(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self._usage, name, getattr(self._usage, name) + count)
