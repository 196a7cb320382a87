"""Where workers connect: one socket, one thread that owns it, and tasks handed to whoever says hello.

Workers come and go as they like. Each connection is named by a lease, and messages on it are sealed with the lease's
own key, which ends with it. A worker is handed two tasks at a time, so that one travels while another is worked on.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import zmq

from weft.errors import UserError
from weft.serverless.invoker import Lost, Usage
from weft_function.loop import HEARTBEAT_MS, request_fields
from weft_function.request import Answer, Request
from weft_function.wire import Message, Refused, Seal, new_key

AHEAD = 2  # tasks that a worker is handed at a time
LEAVE_SECONDS = 10.0  # until those that were asked to leave are ended


@dataclass
class Attempt:
    number: int
    request: Request
    future: "Future[Answer]"
    deadline: float  # monotonic


@dataclass
class Peer:
    """A worker that said hello."""

    name: str
    lease: str
    attempts: list[int] = field(default_factory=list)
    has: set[tuple[object, ...]] = field(default_factory=set)  # weights that it was sent


class Hub:
    """An invoker whose workers connect; who starts them is said by those that are made of it."""

    name = "hub"

    def __init__(self, bind: str, key: bytes | None = None, halve: bool = False) -> None:
        self.key, self._halve = key or new_key(), halve
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5 * HEARTBEAT_MS)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._socket.close()
            self._context.term()
            raise UserError(
                f"executor.bind={bind} cannot be listened at ({error}): give another address, or port * for any"
            ) from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._usage, self._lock = Usage(), threading.Lock()
        self._seals: dict[str, Seal] = {}  # by lease
        self._common = Seal(self.key, halve=halve)  # of workers that somebody started with the run's key
        self._inbox: deque[Attempt | int | None] = deque()  # attempts, numbers of workers wanted; None: the end
        self._wake_up, self._woken = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._woken.bind(f"inproc://hub-{id(self)}")
        self._wake_up.connect(f"inproc://hub-{id(self)}")
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)
        self._peers: dict[str, Peer] = {}  # by lease
        self._attempts: dict[int, Attempt] = {}
        self._waiting: deque[int] = deque()
        self._count = self._wanted = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    # -- called by whoever has tasks ----------------------------------------------------------------------------------

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        future: Future[Answer] = Future()
        with self._lock:
            self._count += 1
            number = self._count
        self._hand_in(Attempt(number, request, future, time.monotonic() + deadline_seconds))
        return future

    def scale(self, workers: int) -> None:
        self._hand_in(workers)

    def usage(self) -> Usage:
        with self._lock:
            usage = Usage(**vars(self._usage))
            usage.refused += self._common.refused
        return usage

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._hand_in(None)
            self._thread.join(30)

    def _hand_in(self, what: Attempt | int | None) -> None:
        with self._lock:  # sockets are not for several threads
            self._inbox.append(what)
            self._wake_up.send(b"")

    # -- what those that are made of it do ----------------------------------------------------------------------------

    def _adjust(self) -> None:
        """Starts workers, or asks some to leave, until there are as many as wanted."""

    def _look(self, events: dict[object, int]) -> None:
        """Sees what became of those that it started; called after every wait."""

    def _there(self) -> int:
        """How many of those that it started are still there."""
        return 0

    def _end(self) -> None:
        """Ends those that did not leave when they were asked to."""

    # -- leases -------------------------------------------------------------------------------------------------------

    def _new_lease(self, seconds: float | None = None) -> tuple[str, bytes, float | None]:
        """A lease, its key, and when that is void."""
        lease = secrets.token_hex(8)
        expires = None if seconds is None else time.time() + seconds
        key = hmac.digest(self.key, f"{lease} {expires}".encode(), hashlib.sha256)
        self._seals[lease] = Seal(key, lasts_until=expires, halve=self._halve)
        return lease, key, expires

    def _drop_lease(self, lease: str, why: str) -> None:
        seal = self._seals.pop(lease, None)
        if seal is not None:
            self._add(refused=seal.refused)
        self._forget(lease, why)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            events = dict(self._poller.poll(self._patience_ms()))
            if self._woken in events:
                self._woken.recv()
                going = self._take_in()
            if self._socket in events:
                self._hear()
            self._look(events)
            self._expire()
            self._deal()
        for number in list(self._attempts):
            self._lose(number, "the executor was closed")
        for peer in self._peers.values():
            self._say(peer.lease, Message("stop"))
        self._wanted, until = 0, time.monotonic() + LEAVE_SECONDS
        while self._there() and time.monotonic() < until:
            # Whoever says hello only now is told to leave, too.
            events = dict(self._poller.poll(100))
            if self._woken in events:
                self._woken.recv()
            if self._socket in events:
                self._hear()
            self._look(events)
        self._end()
        for socket in (self._socket, self._woken, self._wake_up):
            socket.close()
        self._context.term()

    def _take_in(self) -> bool:
        while self._inbox:
            what = self._inbox.popleft()
            if what is None:
                return False
            if isinstance(what, int):
                self._wanted = what
                self._adjust()
            else:
                self._attempts[what.number] = what
                self._waiting.append(what.number)
        return True

    def _hear(self) -> None:
        identity, *frames = self._socket.recv_multipart(copy=False)
        lease = bytes(identity.buffer).decode("latin-1")
        seal = self._seals.get(lease, self._common)
        try:
            message = seal.open([frame.buffer for frame in frames])
        except Refused:
            if seal is not self._common:
                self._add(refused=1)
                seal.refused = 0
            return
        fields = message.fields
        if message.kind == "hello":
            self._peers[lease] = Peer(str(fields.get("worker")), lease)
            self._count_peers()
            self._adjust()  # it may be one that nobody wants any more
            return
        if message.kind == "bye":
            self._add(refused=int(fields.get("refused", 0)))
            self._forget(lease, "the worker has left")
            return
        peer, number = self._peers.get(lease), fields.get("number")
        if peer is None or number not in peer.attempts:
            return  # of an attempt that was given up
        peer.attempts.remove(number)
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        if message.kind == "missing":
            peer.has.clear()
            self._waiting.appendleft(number)
            return
        del self._attempts[number]
        if message.kind == "failed":
            attempt.future.set_exception(RuntimeError(f"{peer.name}: {fields.get('why')}"))
            return
        seconds, size = float(fields["seconds"]), sum(frame.buffer.nbytes for frame in frames)
        self._add(tasks=1, bytes_in=size, task_seconds=seconds)
        attempt.future.set_result(Answer(dict(message.tensors), seconds, peer.name))

    def _deal(self) -> None:
        """Hands waiting tasks to workers that have least to do."""
        while self._waiting:
            ready = [peer for peer in self._peers.values() if len(peer.attempts) < AHEAD]
            if not ready:
                return
            peer = min(ready, key=lambda one: len(one.attempts))
            number = self._waiting.popleft()
            attempt = self._attempts.get(number)
            if attempt is None:
                continue
            request = attempt.request
            tensors = dict(request.tensors)
            if request.weights_key not in peer.has:
                tensors |= {f"w:{name}": weight for name, weight in request.weights.items()}
            sent = self._say(peer.lease, Message("task", request_fields(request, number), tensors))
            if sent is None:
                self._waiting.appendleft(number)
                self._forget(peer.lease, "the worker cannot be reached")
                continue
            peer.has.add(request.weights_key)
            peer.attempts.append(number)
            self._add(attempts=1, bytes_out=sent)

    def _expire(self) -> None:
        now = time.monotonic()
        for number, attempt in list(self._attempts.items()):
            if attempt.deadline <= now:
                self._lose(number, f"no answer to task {attempt.request.id} in time")

    def _forget(self, lease: str, why: str) -> None:
        peer = self._peers.pop(lease, None)
        if peer is None:
            return
        self._count_peers()
        for number in peer.attempts:
            self._lose(number, f"{peer.name}: {why}")

    def _lose(self, number: int, why: str) -> None:
        attempt = self._attempts.pop(number, None)
        if attempt is not None:
            self._add(lost=1)
            attempt.future.set_exception(Lost(why))

    def _say(self, lease: str, message: Message) -> int | None:
        """Sends; how many bytes, or None where nobody is there."""
        frames = self._seals.get(lease, self._common).close(message)
        try:
            self._socket.send_multipart([lease.encode("latin-1"), *frames], copy=False)
        except zmq.ZMQError:
            return None
        return sum(len(frame) if isinstance(frame, bytes | bytearray) else frame.nbytes for frame in frames)

    def _patience_ms(self) -> int | None:
        if not self._attempts:
            return None
        nearest = min(attempt.deadline for attempt in self._attempts.values())
        return max(0, int(1000 * (nearest - time.monotonic())) + 1)

    def _count_peers(self) -> None:
        with self._lock:
            self._usage.workers = len(self._peers)
            self._usage.most_workers = max(self._usage.most_workers, len(self._peers))

    def _add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self._usage, name, getattr(self._usage, name) + count)
