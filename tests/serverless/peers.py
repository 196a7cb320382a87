"""Peers of a broker: real workers, workers that send arbitrary messages, and relays."""

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from weft_function.address import parse_address
from weft_function.connection import Connection, connect
from weft_function.program import Op, Program
from weft_function.session import make_hello, new_lease, shared_lease_key
from weft_function.task import Request, TaskId, TaskKind
from weft_function.wire import Message
from weft_function.worker import LeaseTerms, WorkerReport, work

PROGRAM = Program(("x",), ("y",), (Op("linear", ("x",), "y", ("w",)),))


def request(number: int = 0, rows: int = 4, program: Program = PROGRAM) -> Request:
    task = TaskId("run", 1, 0, number, 0, TaskKind.APPLY_VERTEX)
    return Request(task, "forward", program, 1, {"w": np.eye(3)}, {"x": np.full((rows, 3), float(number))})


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def worker(address: str, key: bytes, **terms: Any) -> Iterator[list[WorkerReport]]:
    """The loop of a real worker, in a thread of this process; yields its report, once it has left."""
    lease, reports = new_lease(), list[WorkerReport]()

    def run() -> None:
        reports.append(work(address, shared_lease_key(key, lease), lease, "honest", LeaseTerms(**terms)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield reports
    thread.join(30)
    assert not thread.is_alive()


class RogueWorker:
    """Has the key of a worker, and sends arbitrary messages."""

    def __init__(self, address: str, key: bytes) -> None:
        lease = new_lease()
        self.connection: Connection = connect(*parse_address(address), lease, shared_lease_key(key, lease))

    def send(self, message: Message) -> None:
        with suppress(ConnectionError):  # the broker may have disconnected it
            self.connection.send(message)
            while self.connection.has_unsent:
                select.select([], [self.connection], [], 1)
                self.connection.flush()

    def receive(self, seconds: float = 5.0) -> Message | None:
        """The next message, if there is any."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(ConnectionError):
                message = self.connection.receive()
                if message is not None:
                    return message
            select.select([self.connection], [], [], 0.05)
        return None

    def close(self) -> None:
        self.connection.close()


# What a process does with every connection that it opens, as fast as it can.
FLOODS = {
    "silent": "kept.append(sock)",
    "half a greeting": "kept.append(sock); sock.send(hello[:20])",
    "junk": "[sock.sendall(junk) for _ in range(256)]",  # 256 MiB without a seal
    "junk after a greeting": "sock.sendall(hello); [sock.sendall(junk) for _ in range(256)]",
    "announced": "sock.sendall(struct.pack('<4sQIQ', b'WFT\\x02', 0, 64, 1 << 28)); sock.sendall(junk)",
}


@contextmanager
def flood(address: str, kind: str) -> Iterator[None]:
    """Another process connects and sends, until it is ended."""
    code = f"""
import os, socket, struct
address, kept = {parse_address(address)!r}, []
hello, junk = {make_hello(new_lease())!r}, bytes(1 << 20)
while True:
    try:
        sock = socket.create_connection(address)
        {FLOODS[kind]}
    except OSError:
        kept.clear()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Relay:
    """A relay to `address` that records what workers send, and can cut all connections."""

    def __init__(self, address: str) -> None:
        self._to = parse_address(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded: list[bytearray] = []  # by each worker
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        sink.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else the thread that accepts would keep it open
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(self._to)
                self._pairs.append((here, there))
                self.recorded.append(bytearray())
                for source, sink, kept in ((here, there, self.recorded[-1]), (there, here, bytearray())):
                    threading.Thread(target=self._relay, args=(source, sink, kept), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                self._pass_on(data, source, sink)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
