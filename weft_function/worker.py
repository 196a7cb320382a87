"""The loop of a worker: connect to a graph server, run its tasks, leave when the server says so or at a limit.

The same loop runs in a process of a pool, in a pod, and inside a cloud function, whose time is limited.
"""

import os
import select
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from weft_function.address import parse_address
from weft_function.backoff import Backoff
from weft_function.connection import Closed, Connection, connect
from weft_function.handler import handle
from weft_function.memory import aligned
from weft_function.task import Request
from weft_function.task_message import decode_request, weights_in, weights_key
from weft_function.wire import Malformed, Message, Refused

CACHED_WEIGHTS = 16  # sets of weights in the cache, from which the least recently used is evicted
POLL_MS = 500  # between two checks of the limits
LINGER_SECONDS = 1.0  # for sending the last messages
MAX_REASON_LENGTH = 2000
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0  # between two attempts to connect
WAIT_SECONDS = 600.0


@dataclass(frozen=True)
class LeaseTerms:
    """The limits at which a worker leaves."""

    idle_seconds: float | None = None  # without a task
    seconds: float | None = None  # in all
    parent: int | None = None  # the process that started this one: the worker leaves when it ends
    wait_seconds: float = WAIT_SECONDS  # without a server; a server announces its own limit when the worker registers


@dataclass(frozen=True)
class WorkerReport:
    """What a worker did. `reached`: whether it was connected to its server when it left."""

    tasks: int
    reason: str
    reached: bool = True


class NoServer(ConnectionError):
    """The server cannot be reached."""


def work(address: str, key: bytes, lease: str, name: str, terms: LeaseTerms = LeaseTerms(),
         delay_seconds: float = 0.0) -> WorkerReport:  # fmt: skip
    """Serves one graph server until a limit is reached; a lost connection is opened again.

    The lease names the connection, so that the server knows the key of its session. `delay_seconds`: waited before
    each response (for experiments).
    """
    return Worker(address, key, lease, name, terms, delay_seconds).run()


class Worker:
    def __init__(
        self, address: str, key: bytes, lease: str, name: str, terms: LeaseTerms, delay_seconds: float
    ) -> None:
        self._host, self._port = parse_address(address)
        self._key, self._lease, self._name, self._terms, self._delay = key, lease, name, terms, delay_seconds
        self._weights: OrderedDict[tuple[str, int, tuple[str, ...]], dict[str, np.ndarray]] = OrderedDict()
        self._tasks = self._refused = 0
        self._wait = terms.wait_seconds
        self._started = self._last_received = time.monotonic()

    def run(self) -> WorkerReport:
        while True:
            try:
                connection = self._connect()
            except NoServer as error:
                return WorkerReport(self._tasks, str(error), reached=False)
            if connection is None:
                return WorkerReport(self._tasks, self._limit_reached() or "")
            self._last_received = time.monotonic()
            try:
                reason = self._serve(connection)
            except (Closed, Refused) as error:
                self._refused += isinstance(error, Refused)
                continue
            finally:
                connection.close()
            return WorkerReport(self._tasks, reason)

    def _connect(self) -> Connection | None:
        """A connection to the server, retried for `wait_seconds`; None if a limit is reached first."""
        until, backoff = time.monotonic() + self._wait, Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self._limit_reached(idle=False) is None:
            try:
                return connect(self._host, self._port, self._lease, self._key)
            except (OSError, Refused) as error:
                if time.monotonic() >= until:
                    raise NoServer(f"no server at {self._host}:{self._port} in {self._wait:g} s: {error}") from None
            time.sleep(backoff.next_pause())
        return None

    def _serve(self, connection: Connection) -> str:
        """Runs tasks until the server or a limit ends the lease; returns the reason."""
        poller = select.poll()
        connection.send(Message("register", {"worker": self._name}))
        reason = None
        while reason is None:
            poller.register(connection, select.POLLIN | (select.POLLOUT if connection.has_unsent else 0))
            if poller.poll(POLL_MS):
                connection.flush()
                reason = self._receive(connection)
            reason = reason or self._limit_reached()
        connection.send(Message("bye", {"refused": self._refused}))
        until = time.monotonic() + LINGER_SECONDS
        while connection.has_unsent and time.monotonic() < until:
            poller.register(connection, select.POLLOUT)
            poller.poll(POLL_MS)
            connection.flush()
        return reason

    def _receive(self, connection: Connection) -> str | None:
        """Handles the next message, if it has arrived; the reason to leave, if it is one."""
        try:
            message = connection.receive()
        except Malformed:
            self._refused += 1  # reported to the server with "bye"
            return None
        if message is None:
            return None
        self._last_received = time.monotonic()
        if message.kind == "stop":
            return "asked to"
        if message.kind == "registered":
            self._wait = float(message.fields["deadline_seconds"])
        elif message.kind == "task":
            connection.send(self._run_task(message))
            self._tasks += 1
            self._last_received = time.monotonic()
        return None

    def _run_task(self, message: Message) -> Message:
        attempt = message.fields.get("attempt")
        try:
            request = self._request(message)
            if request is None:
                return Message("missing_weights", {"attempt": attempt})
            response = handle(request, self._name)
        except Exception as error:  # any error is reported to the server, and the next task may still succeed
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON_LENGTH]
            return Message("failed", {"attempt": attempt, "reason": reason})
        if self._delay:
            time.sleep(self._delay)
        return Message("response", {"attempt": attempt, "seconds": response.seconds + self._delay}, response.tensors)

    def _request(self, message: Message) -> Request | None:
        """The request of a task message; None if its weights are neither in the message nor in the cache."""
        key, sent = weights_key(message), weights_in(message)
        if sent or not key[2]:
            # Copied, since a view would keep the buffer of the whole message alive.
            self._weights[key] = {name: aligned(np.array(tensor)) for name, tensor in sent.items()}
            while len(self._weights) > CACHED_WEIGHTS:
                self._weights.popitem(last=False)
        if key not in self._weights:
            return None
        self._weights.move_to_end(key)
        return decode_request(message, self._weights[key])

    def _limit_reached(self, idle: bool = True) -> str | None:
        """The name of a limit that is reached, if any."""
        terms, now = self._terms, time.monotonic()
        if terms.seconds is not None and now - self._started >= terms.seconds:
            return "time"
        if idle and terms.idle_seconds is not None and now - self._last_received >= terms.idle_seconds:
            return "idle"
        if terms.parent is not None and os.getppid() != terms.parent:
            return "orphaned"
        return None
