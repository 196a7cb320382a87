"""The processes of a run's workers on this host: how they are started, asked how they ended, and ended.

On Linux one process, which has imported torch, forks the workers and ends (`weft.launch.starter`); they become children
of this process. Elsewhere every worker is a process that imports torch for itself.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from weft.errors import WorkerLost
from weft.launch.starter import Job, Start, fork, send_job, serve_forked

POLL_SECONDS = 0.05
ENDS_SECONDS = 10.0  # a killed process that has not ended by then is in the hands of the kernel
FORKS = sys.platform == "linux"  # elsewhere libraries that have been imported may not survive a fork
_PR_SET_CHILD_SUBREAPER = 36


class WorkerProcess:
    """A child of this process. When it has ended it stays a zombie until `reap`, so that its id stays its own."""

    def __init__(self, pid: int, started: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid, self._started = pid, started
        self._code: int | None = None

    def code(self) -> int | None:
        """The exit code once it has ended; negative: the signal that killed it."""
        if self._code is None and not hasattr(os, "waitid"):
            assert self._started is not None
            self._code = self._started.poll()
        elif self._code is None:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        return self._code

    def signal(self, number: int) -> None:
        """To the worker alone, not its group: its own children (data loaders, compilers) are its to stop."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it and all that it started."""
        if self._code is None:
            for kill in (os.killpg, os.kill):  # it leads a group, but not from its first moment
                with suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Waits for the end of a process that was killed, after which its id may be another's."""
        until = time.monotonic() + ENDS_SECONDS
        while self._code is None and time.monotonic() < until:
            if self._started is not None:
                self._code = self._started.poll()
            else:
                process_id, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if process_id else None
            if self._code is None:
                time.sleep(0.001)


def end_processes(processes: Sequence[WorkerProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.reap()


def start_workers(
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    starts: Sequence[Start],
    handed: bytes | None,
    deadline_seconds: float,
    stopped: Callable[[], bool],
) -> list[WorkerProcess]:
    """Processes that call `main()` of a module, one for each start.

    `variables` are of all, `handed` goes to the standard input of each. No process is there, and none is given, where
    `stopped` says so meanwhile; where starting fails, the one that failed is given for all.
    """
    pipes = [] if handed is None else [os.pipe() for _ in starts]
    if pipes:
        starts = [replace(start, stdin=pipe[0]) for start, pipe in zip(starts, pipes, strict=True)]
    job = Job(module, arguments, os.environ | variables, starts)
    try:
        if FORKS and len(starts) > 1:
            processes = _fork(job, deadline_seconds, stopped)
        else:
            processes = [_begin(replace(job, workers=[start])) for start in starts]
    except BaseException:
        for pipe in pipes:
            os.close(pipe[1])
        raise
    finally:
        for pipe in pipes:
            os.close(pipe[0])
    for pipe in pipes:
        threading.Thread(target=_hand, args=(pipe[1], handed), daemon=True).start()
    return processes


def _hand(pipe: int, content: bytes) -> None:
    """Writes to a worker's standard input, as fast as it reads; whether it still reads is not asked."""
    with suppress(OSError), os.fdopen(pipe, "wb") as file:
        file.write(content)


def _begin(job: Job) -> WorkerProcess:
    """A process that imports what workers need, with its job."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "weft.launch.starter"],  # -P: not from the current folder
            stdin=theirs.fileno(),
            env=dict(job.variables),
            # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once, and a worker is ended
            # together with whatever it started.
            start_new_session=True,
        )
        with suppress(OSError):
            send_job(ours, job)
    return WorkerProcess(process.pid, process)


_held: tuple[WorkerProcess, socket.socket] | None = None  # a process that was forked to start the next workers
_threads_of_imports: int | None = None  # of this process, when it had done nothing but import


def note_imports() -> None:
    """Says that nothing has run in this process but imports."""
    global _threads_of_imports
    if FORKS:
        _threads_of_imports = len(os.listdir("/proc/self/task"))


def hold_starter() -> None:
    """Forks a process that becomes the workers which are started next: they need not import torch again.

    Only where nothing has run yet that starts threads. It is for commands: who calls a library expects no copy.
    """
    global _held
    if not FORKS or len(os.listdir("/proc/self/task")) != _threads_of_imports:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, (ours, theirs) = os.getpid(), socket.socketpair()
    process_id = fork()
    if not process_id:
        ours.close()
        serve_forked(theirs, parent)
    theirs.close()
    _held = WorkerProcess(process_id), ours


def _starter_for(job: Job) -> WorkerProcess:
    """A process that has this job: the one that is held, or a new one."""
    global _held
    if _held is None:
        return _begin(job)
    (process, connection), _held = _held, None
    with connection:
        try:
            send_job(connection, job)
        except OSError:  # it was killed
            process.reap()
            return _begin(job)
    return process


def _fork(job: Job, deadline_seconds: float, stopped: Callable[[], bool]) -> list[WorkerProcess]:
    """Workers that one process forks. They wait for a byte each: those that nobody knows of end by themselves."""
    report, told = os.pipe()
    go, begin = os.pipe()
    try:
        with _adopts_orphans():
            starter = _starter_for(replace(job, report=told, go=go))
            os.close(told)
            told = -1
            in_time = _wait_for(starter, deadline_seconds, stopped)
            if not in_time:
                starter.kill()
        processes = [WorkerProcess(int(line)) for line in _read_all(report).splitlines()]
        if len(processes) == len(job.workers) and not stopped():
            starter.reap()
            os.write(begin, b"." * len(processes))
            return processes
        end_processes(processes)
        if in_time and not stopped():
            return [starter]
        end_processes([starter])
        if stopped():
            return []
        raise WorkerLost(f"the workers did not start within the deadline of {deadline_seconds:g} s")
    finally:
        for descriptor in (report, told, go, begin):
            if descriptor >= 0:
                os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _wait_for(process: WorkerProcess, seconds: float, stopped: Callable[[], bool]) -> bool:
    """Whether it has ended by itself: it is not waited for when the run is stopped, or its time is up."""
    until = time.monotonic() + seconds
    while process.code() is None:
        if stopped() or time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS / 10)
    return True


_adopting = 0
_adopting_lock = threading.Lock()


@contextmanager
def _adopts_orphans() -> Iterator[None]:
    """Processes whose parent ends become children of this process meanwhile, if it started that parent."""
    global _adopting
    with _adopting_lock:
        _adopting += 1
        _set_subreaper(True)
    try:
        yield
    finally:
        with _adopting_lock:
            _adopting -= 1
            _set_subreaper(_adopting > 0)


def _set_subreaper(adopts: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)
