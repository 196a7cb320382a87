"""Starts a run's workers on this machine, watches them, and says in one sentence what went wrong.

torch's own `start_processes` is not used: when a worker dies it sends the others SIGTERM, which to our workers means
"write a checkpoint and leave", and waits 30 s for it; it has no way to pass a signal on and let the workers finish;
it starts workers that outlive a killed parent; and it cannot tell the worker that died from those that lost it.
The meeting point is torch's TCPStore, and workers see the same environment as under torchrun.
"""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO, Any

from weft.comm.communicator import DEFAULT_DEADLINE_SECONDS
from weft.comm.process import EXIT_FAILURE, EXIT_USER_ERROR, PARENT_VARIABLE, STATUS_VARIABLE
from weft.errors import UserError

POLL_SECONDS = 0.05
SETTLE_SECONDS = 3.0  # after a first failure: time for the others to fail with better words
TAIL_LINES = 30
EXITS_INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # a worker was asked to leave, and did


@dataclass(frozen=True)
class _End:
    """How one worker ended badly."""

    worker: int
    code: int  # negative: the signal that killed it
    kind: str  # killed, user, error, lost
    message: str


def launch(
    module: str,
    args: Sequence[str],
    workers: int,
    threads_per_worker: int | None = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    port: int | None = None,
    grace_seconds: float = 60.0,
    environment: dict[str, str] | None = None,
) -> int:
    """Runs `python -m MODULE ARGS` as `workers` processes and returns when all have ended.

    0: all is well. 2: a worker found a mistake of the user's, printed once. 1: any other failure; the first worker to
    fail is named, the others are ended within seconds. 128 + signal: SIGINT or SIGTERM came; workers got SIGTERM and
    `grace_seconds` to write a checkpoint and leave (a second signal ends them at once).

    Worker 0 shares the terminal; the others' output goes to files that are shown when they fail. `port` is where the
    workers meet (on the loopback interface only); without it the system chooses one.
    """
    if workers < 1:
        raise UserError(f"a run needs at least one worker, not {workers}: set workers to 1 or more")
    folder = Path(tempfile.mkdtemp(prefix="weft-run-"))
    processes: list[subprocess.Popen[bytes]] = []
    store = None
    try:
        store, port = _open_store(port, deadline_seconds)
        with _signals() as signals:
            for worker in range(workers):
                variables = _variables(worker, workers, threads_per_worker, port, folder) | (environment or {})
                processes.append(_start(module, args, worker, variables, folder))
            return _watch(processes, signals, folder, grace_seconds)
    finally:
        _kill(processes)
        del store
        shutil.rmtree(folder, ignore_errors=True)


def _open_store(port: int | None, deadline_seconds: float) -> tuple[Any, int]:
    """The store where workers meet, held here so that it outlives any of them; on the loopback interface only."""
    # Here, because it imports torch: a mistake in the arguments should be told at once.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        listener = socket.create_server(("127.0.0.1", port or 0))
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "is in use by another program" if in_use else f"cannot be opened ({error})"
        raise UserError(f"port {port} {reason}: choose another one, or none to let the system choose") from error
    port = int(listener.getsockname()[1])
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=deadline_seconds),
        master_listen_fd=listener.detach(),
    )
    return store, port


def _variables(worker: int, workers: int, threads: int | None, port: int, folder: Path) -> dict[str, str]:
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // workers)
    variables = {
        "RANK": str(worker),
        "LOCAL_RANK": str(worker),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours: no worker opens one
        "OMP_NUM_THREADS": str(threads),
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for torch's tensors: page faults cost more than kernels
        STATUS_VARIABLE: str(folder),
        PARENT_VARIABLE: str(os.getpid()),
    }
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


def _start(
    module: str, args: Sequence[str], worker: int, variables: dict[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    output: IO[bytes] | None = None if worker == 0 else _log(folder, worker).open("wb")
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "weft.comm.bootstrap", module, *args],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once, and a worker is ended
            # together with whatever it started.
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()


def _watch(processes: list[subprocess.Popen[bytes]], signals: list[int], folder: Path, grace_seconds: float) -> int:
    leave_by: float | None = None
    codes: list[int | None] = []
    while len(signals) < 2:  # the second signal: no more waiting
        codes = [_code(process) for process in processes]
        if None not in codes or any(code not in (None, 0, *EXITS_INTERRUPTED) for code in codes):
            break
        if signals and leave_by is None:
            leave_by = time.monotonic() + grace_seconds
            for process in processes:
                _signal(process, signal.SIGTERM)
        if leave_by is not None and time.monotonic() > leave_by:
            print(f"error: workers did not leave within {grace_seconds:g} s and were ended", file=sys.stderr)
            break
        time.sleep(POLL_SECONDS)
    ends = _settle(processes, folder) if any(code not in (None, 0, *EXITS_INTERRUPTED) for code in codes) else []
    _kill(processes)
    # A worker that dies of the signal that we passed on (it was not ready to handle it yet) is no failure.
    if ends and not (signals and -ends[0].code == signal.SIGTERM):
        return _explain(ends, folder)
    if signals:
        return 128 + signals[0]
    return max((code for code in codes if code in EXITS_INTERRUPTED), default=0)


def _settle(processes: list[subprocess.Popen[bytes]], folder: Path) -> list[_End]:
    """Gives the others a moment to notice, ends the rest, and returns all bad ends, the cause first."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and any(_code(process) is None for process in processes):
        if any(end.kind in ("killed", "user") for end in _bad_ends(processes, folder)):
            break  # there is nothing better to wait for
        time.sleep(POLL_SECONDS)
    ends = _bad_ends(processes, folder)
    _kill(processes)
    causes = ["killed", "user", "error", "lost"]
    return sorted(ends, key=lambda end: causes.index(end.kind))


def _bad_ends(processes: list[subprocess.Popen[bytes]], folder: Path) -> list[_End]:
    ends = []
    for worker, process in enumerate(processes):
        code = _code(process)
        if not code or code in EXITS_INTERRUPTED:
            continue
        kind, message = "error", f"exit code {code}"
        if code < 0:
            kind, message = "killed", _signal_name(-code)
        with suppress(OSError, ValueError, KeyError):
            note = json.loads((folder / f"{worker}.error").read_text())
            kind, message = str(note["kind"]), str(note["message"])
        ends.append(_End(worker, code, kind, message))
    return ends


def _explain(ends: list[_End], folder: Path) -> int:
    cause = ends[0]
    if cause.kind == "user":
        print(f"error: {cause.message}", file=sys.stderr)
        return EXIT_USER_ERROR
    step = _last_step(folder, cause.worker)
    if cause.kind == "killed":
        hint = " (often: the machine ran out of memory)" if -cause.code == signal.SIGKILL else ""
        text = f"worker {cause.worker} was killed by {cause.message} during {step}{hint}"
    elif cause.kind == "lost":
        text = cause.message
    else:
        text = f"worker {cause.worker} failed during {step}: {cause.message}"
    if cause.worker != 0 and cause.kind != "lost":
        _show_log(folder, cause.worker)
    print(f"error: {text}; all other workers were ended", file=sys.stderr)
    return EXIT_USER_ERROR if cause.code == EXIT_USER_ERROR else EXIT_FAILURE


def _last_step(folder: Path, worker: int) -> str:
    try:
        return (folder / f"{worker}.step").read_text(errors="replace").strip() or "start"
    except OSError:
        return "start"


def _log(folder: Path, worker: int) -> Path:
    return folder / f"{worker}.log"


def _show_log(folder: Path, worker: int) -> None:
    with suppress(OSError):
        lines = _log(folder, worker).read_text(errors="replace").splitlines()[-TAIL_LINES:]
        if lines:
            print(f"--- the last of worker {worker}'s output ---", file=sys.stderr)
            print("\n".join(lines), file=sys.stderr)
            print("---", file=sys.stderr)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The SIGINT and SIGTERM that came, in order; the handlers of before are put back at the end."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # only the main thread may handle signals: there the caller decides
        return

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    # The worker alone, not its group: its own children (data loaders, compilers) are its to stop.
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a worker that has ended (negative: signal). It stays a zombie, so that its id stays its own."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll()
    end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends every worker and all that it started."""
    for process in processes:
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
