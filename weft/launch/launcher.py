"""Starts a run's workers on this machine, watches them, and says in one sentence what went wrong.

torch's own `start_processes` is not used: when a worker dies it sends the others SIGTERM, which to our workers means
"write a checkpoint and leave", and waits 30 s for it; it has no way to pass a signal on and let the workers finish;
it starts workers that outlive a killed parent; and it cannot tell the worker that died from those that lost it.
The meeting point is torch's TCPStore, and workers see the same environment as under torchrun.
"""

import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from weft.comm.communicator import DEFAULT_DEADLINE_SECONDS
from weft.comm.process import (
    EXIT_FAILURE,
    EXIT_USER_ERROR,
    GO_ON,
    STATUS_VARIABLE,
    STOP,
)
from weft.disk import scratch_folder
from weft.errors import UserError, print_error
from weft.launch.ending import Ending
from weft.launch.parent import PARENT_VARIABLE
from weft.launch.processes import POLL_SECONDS, WorkerProcess, end_processes, start_workers
from weft.launch.starter import Start

REPORT_SECONDS = 3.0  # after a first failure: time for others to report one that says more
TAIL_LINES = 30
DESCRIPTORS, DESCRIPTORS_PER_WORKER = 64, 4  # of a process of a run: its own files, and connections to each worker
EXITS_INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # a worker was asked to leave, and did


@dataclass(frozen=True)
class _Failure:
    """How one worker failed."""

    worker: int
    code: int  # negative: the signal that killed it
    kind: str  # killed, user, error, lost
    message: str
    trace: str = ""


def launch(
    module: str,
    args: Sequence[str],
    workers: int,
    threads_per_worker: int | None = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    port: int | None = None,
    grace_seconds: float = 60.0,
    environment: dict[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
    handed: bytes | None = None,
    on_record: Callable[[dict[str, Any]], bool] | None = None,
) -> Ending:
    """Calls `main()` of a module in `workers` processes, whose arguments are ARGS, and returns when all have ended.

    The code is 0: all is well. 2: a worker found a mistake of the user's. 1: any other failure; the first worker to
    fail is named, the others are ended within seconds. 128 + signal: SIGINT or SIGTERM came; workers got SIGTERM and
    `grace_seconds` to write a checkpoint and leave (a second signal ends them at once).

    Worker 0 shares the terminal; the others' output goes to files that are shown when they fail. The caller prints
    what went wrong, by `print_failure`. `port` is where the workers meet (on the loopback interface only); without it
    the system chooses one. `documents` are texts for `process.handed_over`, and `handed` are bytes that go to every
    worker through a pipe, for `process.handed_through_pipe`. `on_record` is called here with what worker 0 gives
    `process.tell_launcher`, while the workers wait for its answer; an exception of it ends them.
    """
    if workers < 1:
        raise UserError(f"a run needs at least one worker, not {workers}: set workers to 1 or more")
    with _descriptors_for(workers), scratch_folder("run") as folder:
        for name, text in (documents or {}).items():
            (folder / name).write_text(text)
        processes: list[WorkerProcess] = []
        store = None
        try:
            store, port = _open_store(port, deadline_seconds)
            with _signals() as signals, _line_to(on_record) as line:
                variables = _variables(workers, threads_per_worker, port, folder) | (environment or {})
                starts = [_start_of(worker, folder, line) for worker in range(workers)]
                processes += start_workers(
                    module, args, variables, starts, handed, deadline_seconds, stopped=lambda: bool(signals)
                )
                if line is not None:
                    line.theirs.close()  # it is worker 0's now, whose end closes it
                return _watch(processes, signals, folder, grace_seconds, line)
        finally:
            end_processes(processes)
            del store


@contextmanager
def _descriptors_for(workers: int) -> Iterator[None]:
    """Raises the limit of open files, which workers inherit, for the block; refuses a limit that no run can do with.

    torch's store reports no lack of them: it waits for a connection that it cannot accept until its time is up.
    """
    needed = DESCRIPTORS + DESCRIPTORS_PER_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"{workers} workers open up to {needed} files each, and this process may open {hard}: raise the limit "
            f"(ulimit -n {needed})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
    try:
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=deadline_seconds),
            master_listen_fd=listener.detach(),
        )
    except RuntimeError as error:
        raise UserError(
            f"the place where workers meet cannot be opened ({error}): raise the number of open files (ulimit -n)"
        ) from error
    return store, port


def _variables(workers: int, threads: int | None, port: int, folder: Path) -> dict[str, str]:
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // workers)
    variables = {
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours: no worker opens one
        "OMP_NUM_THREADS": str(threads),
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for torch's tensors: page faults cost more than kernels
        "PYTHONSAFEPATH": "1",  # nor do processes that workers start import from the current folder
        STATUS_VARIABLE: str(folder),
        PARENT_VARIABLE: str(os.getpid()),
    }
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


class _Line:
    """A socket between worker 0 and this process: a record comes as a line of JSON, the answer goes back as a line."""

    def __init__(self, answer: Callable[[dict[str, Any]], bool]) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._answer, self._came = answer, b""

    def serve(self, seconds: float) -> None:
        """Waits so long for a record, and answers those that have come."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return
        piece = self._ours.recv(1 << 16)
        if not piece:  # worker 0 has ended
            time.sleep(seconds)
        *lines, self._came = (self._came + piece).split(b"\n")
        for line in lines:
            answer = GO_ON if self._answer(json.loads(line)) else STOP
            with suppress(OSError):
                self._ours.sendall(answer.encode())

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


@contextmanager
def _line_to(answer: Callable[[dict[str, Any]], bool] | None) -> Iterator[_Line | None]:
    if answer is None:
        yield None
        return
    line = _Line(answer)
    try:
        yield line
    finally:
        line.close()


def _start_of(worker: int, folder: Path, line: _Line | None) -> Start:
    return Start(
        {"RANK": str(worker), "LOCAL_RANK": str(worker)},
        log=None if worker == 0 else str(_log(folder, worker)),
        line=line.theirs.fileno() if line is not None and worker == 0 else None,
    )


def _watch(
    processes: Sequence[WorkerProcess],
    signals: list[int],
    folder: Path,
    grace_seconds: float,
    line: _Line | None = None,
) -> Ending:
    leave_by: float | None = None
    codes: list[int | None] = []
    while len(signals) < 2:  # the second signal: no more waiting
        codes = [process.code() for process in processes]
        if None not in codes or any(code not in (None, 0, *EXITS_INTERRUPTED) for code in codes):
            break
        if signals and leave_by is None:
            leave_by = time.monotonic() + grace_seconds
            if signals[0] == signal.SIGINT:
                print("\nstopping; Ctrl-C again ends it at once", file=sys.stderr, flush=True)
            for process in processes:
                process.signal(signal.SIGTERM)
        if leave_by is not None and time.monotonic() > leave_by:
            print_error(f"workers did not leave within {grace_seconds:g} s and were ended")
            break
        if line is None:
            time.sleep(POLL_SECONDS)
        else:
            line.serve(POLL_SECONDS)
    failed = any(code not in (None, 0, *EXITS_INTERRUPTED) for code in codes)
    failures = _collect_failures(processes, folder) if failed else []
    end_processes(processes)
    # A worker that dies of the signal that we passed on (it was not ready to handle it yet) is no failure.
    if failures and not (signals and -failures[0].code == signal.SIGTERM):
        return _explain(failures[0], folder)
    if signals:
        return Ending(128 + signals[0])
    return Ending(max((code for code in codes if code in EXITS_INTERRUPTED), default=0))


def _collect_failures(processes: Sequence[WorkerProcess], folder: Path) -> list[_Failure]:
    """Gives the other workers a moment to report, ends the rest, and returns all failures, the cause first."""
    until = time.monotonic() + REPORT_SECONDS
    while time.monotonic() < until and any(process.code() is None for process in processes):
        if any(failure.kind in ("killed", "user") for failure in _failures(processes, folder)):
            break  # there is nothing better to wait for
        time.sleep(POLL_SECONDS)
    failures = _failures(processes, folder)
    end_processes(processes)
    causes = ["killed", "user", "error", "lost"]
    return sorted(failures, key=lambda failure: causes.index(failure.kind))


def _failures(processes: Sequence[WorkerProcess], folder: Path) -> list[_Failure]:
    failures = []
    for worker, process in enumerate(processes):
        code = process.code()
        if not code or code in EXITS_INTERRUPTED:
            continue
        kind, message, trace = "error", f"exit code {code}", ""
        if code < 0:
            kind, message = "killed", _signal_name(-code)
        with suppress(OSError, ValueError, KeyError):
            note = json.loads((folder / f"{worker}.error").read_text())
            kind, message, trace = str(note["kind"]), str(note["message"]), str(note["trace"])
        failures.append(_Failure(worker, code, kind, message, trace))
    return failures


def _explain(cause: _Failure, folder: Path) -> Ending:
    if cause.kind == "user":
        return Ending(EXIT_USER_ERROR, cause.kind, cause.message)
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
    return Ending(EXIT_USER_ERROR if cause.code == EXIT_USER_ERROR else EXIT_FAILURE, cause.kind, text, cause.trace)


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
