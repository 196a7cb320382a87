"""The process that becomes the workers of this host: it imports what they need, once, forks each of them, and ends.

Importing torch takes a second of a core. Whoever has imported it can be forked safely as long as nothing else has run
there: no kernel, hence no thread of OpenMP, which a fork would lose. So this is either a process of its own,
`python -m weft.launch.starter`, or the command line's, forked before it does anything (`processes.hold_starter`). Its
workers become children of the launcher. Where there is one worker to start, it becomes that worker itself.

It is told what to start through a socket: as JSON, and after it the descriptors that the JSON names.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import NoReturn

from weft.launch.parent import end_with_parent

LENGTH_BYTES = 8
MOST_DESCRIPTORS = 200  # of a message; the kernel takes 253
_PR_SET_NAME = 15


@dataclass(frozen=True)
class Start:
    """What one worker is started with, besides what all have in common."""

    variables: Mapping[str, str]
    log: str | None = None  # where its output goes; None: it shares the terminal
    stdin: int | None = None  # a descriptor that it reads, named by PIPE_VARIABLE; None: nothing
    line: int | None = None  # a descriptor of its own to the launcher, named by LINE_VARIABLE


@dataclass(frozen=True)
class Job:
    """Workers to be started: `main()` of a module is called in each."""

    module: str
    arguments: Sequence[str]
    variables: Mapping[str, str]  # the whole environment
    workers: Sequence[Start]
    report: int | None = None  # where the id of each process goes that was forked
    go: int | None = None  # from which each of them reads a byte before it works

    def descriptors(self) -> list[int]:
        of_workers = [one for start in self.workers for one in (start.stdin, start.line)]
        return [one for one in (*of_workers, self.report, self.go) if one is not None]


def send_job(connection: socket.socket, job: Job) -> None:
    text = json.dumps(asdict(job)).encode()
    connection.sendall(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    descriptors = job.descriptors()
    for first in range(0, len(descriptors), MOST_DESCRIPTORS):
        socket.send_fds(connection, [b"."], descriptors[first : first + MOST_DESCRIPTORS])


def receive_job(connection: socket.socket) -> Job | None:
    """The job, with the numbers that its descriptors have here; None where there is none."""
    length = _receive(connection, LENGTH_BYTES)
    fields = json.loads(_receive(connection, int.from_bytes(length, "little")) or "null")
    if fields is None:
        return None
    job = Job(**{**fields, "workers": [Start(**one) for one in fields["workers"]]})
    theirs, ours = job.descriptors(), list[int]()
    while len(ours) < len(theirs):
        message, descriptors, *_ = socket.recv_fds(connection, 1, MOST_DESCRIPTORS)
        if not message:
            return None
        ours += descriptors
    here: dict[int | None, int | None] = {None: None, **dict(zip(theirs, ours, strict=True))}
    workers = [replace(one, stdin=here[one.stdin], line=here[one.line]) for one in job.workers]
    return replace(job, workers=workers, report=here[job.report], go=here[job.go])


def _receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes and no more: what comes behind them has descriptors with it. Fewer where the other side ends."""
    pieces = bytearray()
    while len(pieces) < size and (piece := connection.recv(size - len(pieces))):
        pieces += piece
    return bytes(pieces)


def main() -> NoReturn:
    end_with_parent()
    _set_name("weft starter")
    gc.disable()  # all that is imported stays: to look for garbage in it takes a sixth of the time
    job = receive_job(socket.socket(fileno=os.dup(0)))
    start(job)


def serve_forked(connection: socket.socket, parent: int) -> NoReturn:
    """What a process does that was forked from the command line's: it waits for a job."""
    os.setsid()  # Ctrl-C reaches the launcher alone, which passes it on once
    for number in (signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(number)):  # nohup ignores SIGHUP, and is to be obeyed
            signal.signal(number, signal.SIG_DFL)
    end_with_parent(parent)
    _set_name("weft starter")
    start(receive_job(connection))


def start(job: Job | None) -> NoReturn:
    """Starts the workers of a job; without one there is nothing to do."""
    if job is None:
        os._exit(0)
    os.environ.clear()
    os.environ.update(job.variables)
    # Here, and not above: a starter of its own dies while it imports torch, and is to be heard.
    from weft.comm.process import end_process

    try:
        module = importlib.import_module(job.module)
    except BaseException as error:
        end_process(error)
    sys.argv = [job.module, *job.arguments]
    gc.freeze()  # nor is it looked at later, so that workers share its pages
    if job.report is None:
        _become(job.workers[0], job, module)
    for worker in job.workers:
        process_id = _fork(worker, job, module)
        os.write(job.report, f"{process_id}\n".encode())
    os._exit(0)


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: OpenBLAS' and jemalloc's survive a fork
        return os.fork()


def _fork(worker: Start, job: Job, module: ModuleType) -> int:
    process_id = fork()
    if process_id:
        return process_id
    from weft.comm.process import end_process

    assert job.report is not None and job.go is not None
    try:
        os.close(job.report)
        os.setsid()
        if not os.read(job.go, 1):
            os._exit(1)  # the launcher has given up, or is gone
        end_with_parent()  # which is the launcher from now on
        _become(worker, job, module)
    except BaseException as error:
        end_process(error)


def _become(worker: Start, job: Job, module: ModuleType) -> NoReturn:
    """Goes on as one of the workers."""
    import torch

    from weft.comm.process import LINE_VARIABLE, PIPE_VARIABLE, run_worker

    gc.enable()
    os.environ.update(worker.variables)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # OpenMP has read another value if it was loaded before
    _set_name(f"weft worker {worker.variables['RANK']}")
    for number, path, flags in (
        (0, None if worker.stdin is not None else os.devnull, os.O_RDONLY),
        (1, worker.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        if path is not None:
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, number)
            os.close(opened)
    if worker.log is not None:
        os.dup2(1, 2)
    if worker.stdin is not None:
        os.dup2(worker.stdin, 0)
        os.environ[PIPE_VARIABLE] = "1"
    sys.stdin = os.fdopen(0, closefd=False)  # what the former one has read ahead is not this worker's
    if worker.line is not None:
        os.environ[LINE_VARIABLE] = str(worker.line)
    for descriptor in job.descriptors():
        if descriptor not in (worker.line, job.report):
            os.close(descriptor)
    run_worker(module.main)


def _set_name(name: str) -> None:
    """What `top` and `ps` call this process, in at most 15 bytes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


if __name__ == "__main__":
    main()
