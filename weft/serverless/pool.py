"""A pool of worker processes: those started on this machine, and those started elsewhere with `weft worker`."""

import os
import re
import selectors
import subprocess
import sys
import time
from functools import partial

from weft.errors import UserError
from weft.serverless.broker import LEFT
from weft.serverless.elastic import ElasticBroker
from weft.serverless.invoker import DEADLINE_SECONDS
from weft_function.address import parse_address
from weft_function.backoff import Backoff
from weft_function.session import KEY_BYTES

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0  # between starts of processes that do not register
NOTICE_SECONDS, POLL_SECONDS = 0.5, 0.05  # while waiting for a worker from elsewhere
KEY_DIGITS = 2 * KEY_BYTES
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_workers(
    address: str, count: int, idle_seconds: float | None, wait_seconds: float, trust: tuple[str, ...]
) -> int:
    """Runs worker processes for another machine's run; returns the first exit code that is not 0.

    They retry connecting to the run for `wait_seconds`.
    """
    if run_key() is None:
        raise UserError(
            f"the variable WEFT_KEY must hold the run's key, {KEY_DIGITS} hexadecimal digits, here and there"
        )
    try:
        parse_address(address)
    except ValueError as error:
        raise UserError(str(error)) from None
    options = ["--wait", str(wait_seconds)]
    options += [] if idle_seconds is None else ["--idle", str(idle_seconds)]
    command = _worker_command(address, options, trust)
    workers = [subprocess.Popen(command, env={**os.environ, **SINGLE_THREAD}) for _ in range(count)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:
        codes = []
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    return next((code for code in codes if code), 0)


def run_key(required: bool = False) -> bytes | None:
    """The key that the run shares with workers from elsewhere: hexadecimal digits in WEFT_KEY; None if not set."""
    text = os.environ.get("WEFT_KEY")
    if text is None and required:
        raise UserError(
            "executor.workers=0 leaves it to others to bring workers, and nobody can without a key: set the variable "
            "WEFT_KEY here and there ('export WEFT_KEY=$(openssl rand -hex 32)'), or executor.workers to 1 or more"
        )
    if text is None:
        return None
    if not re.fullmatch(f"[0-9a-fA-F]{{{KEY_DIGITS}}}", text):
        raise UserError(
            f"the variable WEFT_KEY must hold {KEY_DIGITS} hexadecimal digits: make them with 'openssl rand -hex 32'"
        )
    return bytes.fromhex(text)


def _worker_command(address: str, options: list[str], trust: tuple[str, ...]) -> list[str]:
    command = [sys.executable, "-P", "-m", "weft_function", address, "--parent", str(os.getpid()), *options]
    for module in trust:
        command += ["--trust", module]
    return command


class PoolInvoker(ElasticBroker):
    """A pool of workers. It starts `processes` of them."""

    name = "pool"

    def __init__(
        self,
        processes: int = 0,
        bind: str = "tcp://127.0.0.1:*",
        key: bytes | None = None,
        as_bfloat16: bool = False,
        delay_seconds: float = 0.0,
        trust: tuple[str, ...] = (),
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._delay, self._trust = delay_seconds, trust
        self._started: dict[str, tuple[subprocess.Popen[bytes], int]] = {}  # by lease: the process and its pidfd
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        super().__init__(bind, key, as_bfloat16, deadline_seconds)
        if processes:
            self.scale(processes)

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers that were started here."""
        return sorted(process.pid for process, _ in list(self._started.values()))

    def await_workers(self) -> None:
        """Waits until a worker from elsewhere has registered; raises UserError at the run's deadline."""
        started, noticed = time.monotonic(), False
        while not self.usage().workers:
            waited = time.monotonic() - started
            if waited >= self._deadline:
                hint = self._no_worker_hint()
                raise UserError(f"no worker has come to {self.address} in {self._deadline:g} s: {hint}")
            if waited >= NOTICE_SECONDS and not noticed:
                print(f"waiting for workers at {self.address} (there: weft worker {self.address})", file=sys.stderr)
                noticed = True
            time.sleep(POLL_SECONDS)

    def _start_worker(self) -> None:
        lease, key = self._leases.issue()
        command = _worker_command(self.address, ["--delay", str(self._delay)] if self._delay else [], self._trust)
        environment = {**os.environ, **SINGLE_THREAD, "WEFT_KEY": key.hex(), "WEFT_LEASE": lease}
        process = subprocess.Popen(command, env=environment)
        fd = os.pidfd_open(process.pid)
        self._started[lease] = process, fd
        self._selector.register(fd, selectors.EVENT_READ, partial(self._on_exit, lease))

    def _on_exit(self, lease: str, mask: int) -> None:
        """Loses the attempts of a process that has ended, and starts another process if one is missing."""
        process, fd = self._started.pop(lease)
        self._selector.unregister(fd)
        os.close(fd)
        process.wait()
        self._record_end(lease)
        self._revoke(lease, f"its process ended with {process.returncode}")
        self._adjust_workers()

    def _on_disconnected(self, lease: str, reason: str) -> None:
        """Kills a process whose connection is lost, so that another one takes its place."""
        super()._on_disconnected(lease, reason)
        if reason != LEFT and lease in self._started:
            self._started[lease][0].kill()

    def _kill_workers(self) -> None:
        for process, fd in self._started.values():
            process.kill()
            process.wait()
            os.close(fd)
        self._started.clear()
