"""Tasks in long-lived processes of this machine, and in any that somebody starts elsewhere with `weft worker`."""

import os
import re
import subprocess
import sys

import zmq

from weft.errors import UserError
from weft.serverless.hub import Hub
from weft_function.wire import Message

SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_workers(address: str, count: int, idle_seconds: float | None, trust: tuple[str, ...]) -> int:
    """Workers for somebody's run, until they leave or are interrupted; the first exit code that is not 0."""
    if run_key() is None:
        raise UserError("the variable WEFT_KEY must hold the run's key, 64 hexadecimal digits, here as there")
    if not re.fullmatch(r"tcp://[^:/]+:\d+", address):
        raise UserError(f"{address} is not an address of the form tcp://HOST:PORT")
    command = [sys.executable, "-m", "weft_function.loop", address, "--parent", str(os.getpid())]
    command += [] if idle_seconds is None else ["--idle", str(idle_seconds)]
    for package in trust:
        command += ["--trust", package]
    workers = [subprocess.Popen(command, env={**os.environ, **SINGLE}) for _ in range(count)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:
        codes = []
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    return next((code for code in codes if code), 0)


def run_key() -> bytes | None:
    """The key of workers that are started elsewhere, if there is one: 64 hexadecimal digits in WEFT_KEY."""
    text = os.environ.get("WEFT_KEY")
    if text is None:
        return None
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise UserError("the variable WEFT_KEY must hold 64 hexadecimal digits: make them with 'openssl rand -hex 32'")
    return bytes.fromhex(text)


class PoolInvoker(Hub):
    """A pool of workers; `processes` of them are started here."""

    name = "pool"

    def __init__(
        self,
        processes: int = 0,
        bind: str = "tcp://127.0.0.1:*",
        key: bytes | None = None,
        halve: bool = False,
        delay_seconds: float = 0.0,
        trust: tuple[str, ...] = (),
    ) -> None:
        self._delay, self._trust = delay_seconds, trust
        self._processes: dict[int, tuple[subprocess.Popen[bytes], str]] = {}  # by pidfd: the process and its lease
        super().__init__(bind, key, halve)
        if processes:
            self.scale(processes)

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers that were started here."""
        return sorted(process.pid for process, _ in list(self._processes.values()))

    def _adjust(self) -> None:
        while len(self._processes) < self._wanted:
            lease, key, _ = self._new_lease()
            command = [sys.executable, "-m", "weft_function.loop", self.address, "--lease", lease]
            command += ["--parent", str(os.getpid())]
            command += ["--delay", str(self._delay)] if self._delay else []
            for package in self._trust:
                command += ["--trust", package]
            process = subprocess.Popen(command, env={**os.environ, **SINGLE, "WEFT_KEY": key.hex()})
            fd = os.pidfd_open(process.pid)
            self._processes[fd] = process, lease
            self._poller.register(fd, zmq.POLLIN)
        spare = len(self._processes) - self._wanted
        for _, lease in list(self._processes.values()):
            peer = self._peers.get(lease)
            if spare > 0 and peer is not None and not peer.attempts:
                self._say(lease, Message("stop"))
                self._forget(lease, "it was asked to leave")
                spare -= 1

    def _look(self, events: dict[object, int]) -> None:
        """A process that has ended loses what it was at, and another takes its place if it is missed."""
        ended = [fd for fd in self._processes if fd in events]
        for fd in ended:
            process, lease = self._processes.pop(fd)
            self._poller.unregister(fd)
            os.close(fd)
            process.wait()
            self._drop_lease(lease, f"its process ended with {process.returncode}")
        if ended:
            self._adjust()

    def _there(self) -> int:
        return len(self._processes)

    def _end(self) -> None:
        for fd, (process, _) in self._processes.items():
            process.kill()
            process.wait()
            os.close(fd)
        self._processes.clear()
