"""Asynchronous messages between graph servers: rows, gradients and weights are sent as soon as they are computed.

The servers exchange addresses and a key over the run's communicator once. After that, one thread per server sends and
receives, and passes on each message, or the error after which no more messages can arrive.
"""

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import WorkerLost
from weft.serverless.connections import Connections
from weft_function.address import parse_address
from weft_function.connection import Connection, connect
from weft_function.session import LEASE_BYTES, derive_key, new_key
from weft_function.wire import Malformed, Message, Refused

LINGER_SECONDS = 2.0  # for receiving the other servers' last messages
ADDRESS_BYTES = 64
KINDS = ("rows", "gradients", "squared_norm", "weights")
_NUMBER_WIDTH = LEASE_BYTES // 2
_PROBE_PORT = 9  # discard


class ServerLinks:
    """One server's connections to all others. Creating them is a collective operation."""

    def __init__(self, comm: Communicator, on_event: Callable[[Message | WorkerLost], None]) -> None:
        """`on_event`: called in another thread with each message, and with a WorkerLost if a connection is lost."""
        self._comm = comm
        self._thread: LinkThread | None = None
        if comm.num_workers == 1:
            return
        shared = torch.frombuffer(bytearray(new_key()), dtype=torch.uint8)
        key = bytes(comm.broadcast(shared, 0, "control", "key of messages between servers").tolist())
        thread = self._thread = LinkThread(comm.worker, key, comm.deadline_seconds, on_event)
        address = thread.address.encode().ljust(ADDRESS_BYTES)
        known = comm.all_gather(torch.frombuffer(bytearray(address), dtype=torch.uint8), "control", "addresses")
        for server, text in enumerate(known.tolist()):
            if server > comm.worker:
                thread.open(server, bytes(text).decode().strip())

    def send(
        self, server: int, kind: str, fields: dict[str, Any], tensors: dict[str, np.ndarray], traffic: str
    ) -> None:
        """Sends a message. `traffic`: the class in which its bytes are counted. Its tensors must not be written to."""
        assert self._thread is not None
        self._comm.sent[traffic] += sum(tensor.nbytes for tensor in tensors.values())
        self._thread.send(server, Message(kind, fields, tensors))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


class LinkThread(Connections):
    """The thread that owns a server's links. Each link is opened by the lower-numbered server of the two it connects.

    The lease of a link contains both servers' numbers.
    """

    name = "server links"

    def __init__(
        self, server: int, key: bytes, deadline_seconds: float, on_event: Callable[[Message | WorkerLost], None]
    ) -> None:
        super().__init__(f"tcp://{own_host()}:*", silent_seconds=deadline_seconds)
        self._server, self._key, self._on_event, self._deadline = server, key, on_event, deadline_seconds
        self._unsent: dict[str, list[Message]] = {}  # by lease, until the other server has connected
        self._finished: set[str] = set()  # leases of servers that will send nothing more
        self.refused = 0
        self._thread.start()

    def open(self, server: int, address: str) -> None:
        """Connects to a server, whose thread already listens."""
        lease = self._lease(server)
        host, port = parse_address(address)
        try:
            key = derive_key(self._key, lease)
            connection = connect(host, port, lease, key, silent_seconds=self._deadline, seconds=self._deadline)
        except (OSError, Refused) as error:
            raise WorkerLost(f"worker {self._server} cannot reach worker {server} at {address}: {error}") from None
        self.post((lease, connection))

    def send(self, server: int, message: Message) -> None:
        self.post((self._lease(server), message))

    def _lease(self, server: int) -> str:
        lower, higher = sorted((server, self._server))
        return f"{lower:>{_NUMBER_WIDTH}}{higher:>{_NUMBER_WIDTH}}"

    def _other_server(self, lease: str) -> int:
        numbers = int(lease[:_NUMBER_WIDTH]), int(lease[_NUMBER_WIDTH:])
        return next(server for server in numbers if server != self._server)

    def _lease_key(self, lease: str) -> bytes | None:
        """Accepts only lower-numbered servers that are not connected yet."""
        first = lease[:_NUMBER_WIDTH].strip()
        valid = first.isdigit() and int(first) < self._server and lease == self._lease(int(first))
        return derive_key(self._key, lease) if valid and lease not in self._connected else None

    def _on_connected(self, lease: str) -> None:
        for message in self._unsent.pop(lease, []):
            self._send(lease, message)

    def _on_item(self, item: Any) -> None:
        lease, content = item
        if isinstance(content, Connection):
            self._add(lease, content)
        elif lease in self._connected:
            self._send(lease, content)
        else:
            self._unsent.setdefault(lease, []).append(content)

    def _on_message(self, lease: str, message: Message) -> None:
        if message.kind == "bye":
            self._finished.add(lease)
        elif message.kind in KINDS:
            self._on_event(message)
        else:
            raise Malformed(f"graph servers do not send messages of kind '{message.kind}'")

    def _on_malformed(self, lease: str, error: Malformed) -> None:
        self._disconnect(lease, str(error))

    def _on_disconnected(self, lease: str, reason: str) -> None:
        if lease not in self._finished:
            other = self._other_server(lease)
            self._on_event(WorkerLost(f"worker {self._server} has lost its connection to worker {other}: {reason}"))

    def _count_refused(self) -> None:
        self.refused += 1

    def _shut_down(self, reason: str, failed: bool) -> None:
        """Announces the end to the other servers, and receives until they have announced theirs."""
        if failed:
            self._on_event(WorkerLost(f"worker {self._server}: {reason}"))
            return
        for lease in list(self._connected):
            self._send(lease, Message("bye"))
        until = time.monotonic() + LINGER_SECONDS
        while self._connected.keys() - self._finished and time.monotonic() < until:
            self._poll(0.1)


def own_host() -> str:
    """The address of this machine in the network of the run's first server."""
    first = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, _PROBE_PORT))  # chooses a route, sends nothing
        return str(probe.getsockname()[0])
