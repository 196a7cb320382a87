"""What a worker does: connect to a graph server, do the tasks that come, leave when asked to or when nothing comes.

    WEFT_KEY=HEX python -m weft_function.loop tcp://HOST:PORT

The same loop runs in a process of a pool, in a pod, and inside a cloud's function, which has a limit on its time.
"""

import argparse
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from weft_function.handler import handle
from weft_function.ops import Call
from weft_function.program import BadProgram, Program
from weft_function.request import Kind, Request, TaskId
from weft_function.wire import Message, Refused, Seal

KEPT_WEIGHTS = 16  # sets of weights, the least lately used go first
HEARTBEAT_MS = 1000
LOOK_MS = 500  # how long it takes at most to see that it is time to go
Key = tuple[Any, ...]


@dataclass(frozen=True)
class LeaseTerms:
    """When a worker leaves by itself."""

    idle_seconds: float | None = None
    seconds: float | None = None
    parent: int | None = None  # with this process, where it was started by one that may be killed


@dataclass(frozen=True)
class Stay:
    """What a worker did."""

    tasks: int
    why: str


def work(
    address: str,
    seal: Seal,
    lease: str,
    name: str,
    terms: LeaseTerms = LeaseTerms(),
    delay_seconds: float = 0.0,
) -> Stay:
    """Serves one graph server until it is time to go. `delay_seconds` are waited before each answer (experiments).

    The server knows by the lease, which names the connection, what the messages on it are sealed with.
    """
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, lease.encode())
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5 * HEARTBEAT_MS)
    try:
        socket.connect(address)
        return Worker(socket, seal, name, terms, delay_seconds).run()
    finally:
        socket.close()
        context.term()


class Worker:
    def __init__(
        self, socket: zmq.Socket[bytes], seal: Seal, name: str, terms: LeaseTerms, delay_seconds: float
    ) -> None:
        self._socket, self._seal, self._name, self._terms, self._delay = socket, seal, name, terms, delay_seconds
        self._weights: OrderedDict[Key, dict[str, np.ndarray]] = OrderedDict()
        self._tasks = 0
        self._started = self._heard = time.monotonic()

    def run(self) -> Stay:
        self._say(Message("hello", {"worker": self._name}))
        while True:
            why = self._over()
            if why is not None:
                break
            if not self._socket.poll(LOOK_MS):
                continue
            self._heard = time.monotonic()
            try:
                message = self._seal.open([frame.buffer for frame in self._socket.recv_multipart(copy=False)])
            except Refused:
                continue  # counted by the seal; whoever sent it learns nothing
            if message.kind == "stop":
                why = "asked to"
                break
            if message.kind == "task":
                self._say(self._done(message))
                self._tasks += 1
                self._heard = time.monotonic()
        self._say(Message("bye", {"refused": self._seal.refused}))
        return Stay(self._tasks, why)

    def _done(self, message: Message) -> Message:
        number = message.fields.get("number")
        try:
            request = self._request(message)
            if request is None:
                return Message("missing", {"number": number})
            answer = handle(request, self._name)
        except (BadProgram, KeyError, TypeError, ValueError, IndexError, PermissionError, ImportError) as error:
            return Message("failed", {"number": number, "why": f"{type(error).__name__}: {error}"})
        if self._delay:
            time.sleep(self._delay)
        return Message("answer", {"number": number, "seconds": answer.seconds + self._delay}, answer.tensors)

    def _request(self, message: Message) -> Request | None:
        """The task of a message; None: its weights are not here."""
        fields = message.fields
        key = (fields["id"][0], fields["version"], tuple(fields["weights"]))
        sent = {name[2:]: tensor for name, tensor in message.tensors.items() if name.startswith("w:")}
        if sent or not key[2]:
            # A copy: the frame that they came in is as large as all that came with them.
            self._weights[key] = {name: np.array(tensor) for name, tensor in sent.items()}
            while len(self._weights) > KEPT_WEIGHTS:
                self._weights.popitem(last=False)
        if key not in self._weights:
            return None
        self._weights.move_to_end(key)
        return request_of(message, self._weights[key])

    def _say(self, message: Message) -> None:
        self._socket.send_multipart(self._seal.close(message), copy=False)

    def _over(self) -> str | None:
        """Why it is time to go, if it is."""
        terms, now = self._terms, time.monotonic()
        if terms.seconds is not None and now - self._started >= terms.seconds:
            return "time"
        if terms.idle_seconds is not None and now - self._heard >= terms.idle_seconds:
            return "idle"
        if terms.parent is not None and os.getppid() != terms.parent:
            return "orphaned"
        return None


def request_of(message: Message, weights: Mapping[str, np.ndarray]) -> Request:
    """The task of a message, with weights that came with it or before it."""
    fields = message.fields
    run, epoch, server, interval, stage, kind = fields["id"]
    return Request(
        TaskId(run, epoch, server, interval, stage, Kind(kind)),
        fields["mode"],
        Program.from_json(fields["program"]),
        fields["version"],
        weights,
        {name: tensor for name, tensor in message.tensors.items() if not name.startswith("w:")},
        {name: int(value) for name, value in fields["constants"].items()},
    )


def request_fields(request: Request, number: int) -> dict[str, Any]:
    """A task as the header of a message; `number` names the attempt."""
    return {
        "number": number,
        "id": list(request.id),
        "mode": request.mode,
        "program": request.program.to_json(),
        "version": request.version,
        "weights": sorted(request.weights),
        "constants": dict(request.constants),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("address", help="tcp://HOST:PORT of the graph server")
    parser.add_argument("--lease", default="", help="name of the connection; one of its own unless given")
    parser.add_argument("--idle", type=float, help="leave after so many seconds without a task")
    parser.add_argument("--parent", type=int, help="leave when this process has ended")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds to wait before each answer (experiments)")
    parser.add_argument("--trust", action="append", default=[], help="package.module whose functions may be called")
    given = parser.parse_args(arguments)
    key = os.environ.pop("WEFT_KEY", "")
    if not re.fullmatch("[0-9a-fA-F]{64}", key):
        parser.error("the variable WEFT_KEY must hold the run's key, 64 hexadecimal digits")
    Call.trusted = tuple(given.trust)
    name = f"worker-{os.getpid()}"
    terms = LeaseTerms(idle_seconds=given.idle, parent=given.parent)
    with suppress(KeyboardInterrupt):
        work(given.address, Seal(bytes.fromhex(key)), given.lease or secrets.token_hex(8), name, terms, given.delay)


if __name__ == "__main__":
    main()
