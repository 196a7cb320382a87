"""The processes of a run's workers on this host: how they are started, asked how they ended, and ended.

On Linux one process imports torch and forks the workers (`weft.launch.starter`); it ends, and they become children of
this process. Elsewhere every worker is a process that imports torch for itself.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from weft.comm.process import LINE_VARIABLE, PIPE_VARIABLE
from weft.errors import WorkerLost

POLL_SECONDS = 0.05
ENDS_SECONDS = 10.0  # a killed process that has not ended by then is in the hands of the kernel
FORKS = (
    sys.platform == "linux"
)  # where a process may be forked that has OpenMP's library in it, but none of its threads
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Start:
    """What one worker is started with, besides what all have in common."""

    variables: dict[str, str]
    log: str | None = None  # where its output goes; None: it shares the terminal
    stdin: int | None = None  # a descriptor that it reads; None: nothing
    line: int | None = None  # a descriptor of its own to this process


@dataclass(frozen=True)
class _Job:
    """What `weft.launch.starter` reads."""

    module: str
    arguments: Sequence[str]
    workers: Sequence[Start]
    report: int | None = None  # where it writes the id of each process that it has forked
    go: int | None = None  # from which each of them reads a byte before it works

    def descriptors(self) -> list[int]:
        of_workers = [one for start in self.workers for one in (start.stdin, start.line)]
        return [one for one in (*of_workers, self.report, self.go) if one is not None]


class WorkerProcess:
    """A child of this process. When it has ended it stays a zombie until `end`, so that its id stays its own."""

    def __init__(self, pid: int, started: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self._started = pid, started
        self._code: int | None = None if started is None else started.returncode

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
    pipes = [os.pipe() if handed is not None else None for _ in starts]
    starts = [_with_pipes(start, pipe) for start, pipe in zip(starts, pipes, strict=True)]
    try:
        if FORKS and len(starts) > 1:
            processes = _fork(module, arguments, variables, starts, deadline_seconds, stopped)
        else:
            began = [_begin(_Job(module, arguments, [start]), variables) for start in starts]
            processes = [WorkerProcess(process.pid, process) for process in began]
    except BaseException:
        for pipe in filter(None, pipes):
            os.close(pipe[1])
        raise
    finally:
        for pipe in filter(None, pipes):
            os.close(pipe[0])
    for pipe in filter(None, pipes):
        threading.Thread(target=_hand, args=(pipe[1], handed), daemon=True).start()
    return processes


def _with_pipes(start: Start, pipe: tuple[int, int] | None) -> Start:
    variables = dict(start.variables)
    if pipe is not None:
        variables[PIPE_VARIABLE] = "1"
    if start.line is not None:
        variables[LINE_VARIABLE] = str(start.line)
    return Start(variables, start.log, None if pipe is None else pipe[0], start.line)


def _hand(pipe: int, content: bytes) -> None:
    """Writes to a worker's standard input, as fast as it reads; whether it still reads is not asked."""
    with suppress(OSError), os.fdopen(pipe, "wb") as file:
        file.write(content)


def _begin(job: _Job, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process of `weft.launch.starter` with its job."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "weft.launch.starter"],  # -P: not from the current folder
        stdin=subprocess.PIPE,
        env=os.environ | variables,
        pass_fds=job.descriptors(),
        # A session of its own: Ctrl-C reaches the launcher alone, which passes it on once, and a worker is ended
        # together with whatever it started.
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(OSError), process.stdin as pipe:
        pipe.write(json.dumps(asdict(job)).encode())
    return process


def _fork(
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    starts: Sequence[Start],
    deadline_seconds: float,
    stopped: Callable[[], bool],
) -> list[WorkerProcess]:
    """Workers that one process forks. They wait for a byte each: those that nobody knows of end by themselves."""
    report, told = os.pipe()
    go, begin = os.pipe()
    try:
        with _adopts_orphans():
            starter = _begin(_Job(module, arguments, starts, told, go), variables)
            os.close(told)
            told = -1
            in_time = _wait_for(starter, deadline_seconds, stopped)
            starter.kill()
            starter.wait(ENDS_SECONDS)
        processes = [WorkerProcess(int(line)) for line in _read_all(report).splitlines()]
        if len(processes) == len(starts) and not stopped():
            os.write(begin, b"." * len(starts))
            return processes
        end_processes(processes)
        if stopped():
            return []
        if not in_time:
            raise WorkerLost(f"the workers did not start within the deadline of {deadline_seconds:g} s")
        return [WorkerProcess(starter.pid, starter)]
    finally:
        for descriptor in (report, told, go, begin):
            if descriptor >= 0:
                os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _wait_for(starter: subprocess.Popen[bytes], seconds: float, stopped: Callable[[], bool]) -> bool:
    """Whether it has ended by itself: it is not waited for when the run is stopped, or its time is up."""
    until = time.monotonic() + seconds
    while not stopped() and time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            starter.wait(POLL_SECONDS)
            return True
    return False


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
