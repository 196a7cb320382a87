"""Worker processes for tests: `run_workers(fn, num_workers, *args)` runs `fn(comm, *args)` on each of them.

    from tests.workers import run_workers

    def total(comm, offset):                      # a module-level function of a test module
        value = torch.tensor([float(comm.worker + offset)])
        return comm.all_reduce(value, "control", "total")

    def test_total():
        assert [r.item() for r in run_workers(total, 3, 10)] == [33.0, 33.0, 33.0]

- `fn` is found by its module and name, so it lives at the top level of an importable module (`tests.comm.test_x`).
- Arguments and results are plain data, tensors, arrays, frozen dataclasses: whatever multiprocessing can carry.
- A group of processes (one thread each, gloo over loopback, a port the system chose) is forked on first use for each
  world size, from a process that has imported torch, and kept for the whole session. Every call gets the group's
  communicator with its byte counters at zero and `comm.step` reset.
- An exception on any worker is raised in the test as `WorkerFailed` with that worker's traceback (`.kind` is the
  exception's class name, `.message` its text), and the group is ended: the next call starts a fresh one. A call that
  takes longer than `timeout_seconds` is killed and raised as `WorkerFailed` too.
- With WEFT_TEST_DEVICE=cuda workers have GPUs: `comm.device` says which, and what they return comes back in memory.
- `fresh=True` uses processes of its own and ends them afterwards: for tests that break things.
"""

import atexit
import multiprocessing
import multiprocessing.context
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")  # cuda: workers share the GPUs that there are
START_SECONDS = 120.0  # importing torch in several processes at once on a busy machine


def before_start() -> None:
    """Called before a group of processes is started; tests/conftest.py replaces it where no processes are wanted."""


class WorkerFailed(AssertionError):
    def __init__(self, worker: int, kind: str, message: str, trace: str) -> None:
        super().__init__(f"worker {worker}: {kind}: {message}\n{trace}")
        self.worker, self.kind, self.message = worker, kind, message


def _fork_server() -> multiprocessing.context.ForkServerContext:
    """Processes are forked from one that has imported torch and has run no kernel, as weft's own workers are."""
    context = multiprocessing.get_context("forkserver")
    # Of the modules that are loaded here only those of the product: tests may change what they find in others.
    context.set_forkserver_preload(
        ["weft.launch.worker_main", "weft.loader", "weft.own_loop", "weft.serverless.executor"]
    )
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # OpenMP reads it when it is loaded
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return context


class _Group:
    def __init__(self, num_workers: int, deadline_seconds: float) -> None:
        before_start()
        forks = _fork_server()
        # The port is bound by the process that listens on it (worker 0 gets the socket): nobody can take it between.
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.deadline_seconds = deadline_seconds
        for worker in range(num_workers):
            here, there = forks.Pipe()
            process = forks.Process(
                target=_serve,
                args=(
                    there,
                    worker,
                    num_workers,
                    port,
                    listener if worker == 0 else None,
                    deadline_seconds,
                    dict(os.environ),
                ),
                daemon=True,
            )
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)
        listener.close()
        try:
            # They meet when all have imported torch: a deadline may be shorter than their imports lie apart.
            self._collect(time.monotonic() + START_SECONDS)
            for pipe in self.pipes:
                pipe.send_bytes(b"meet")
            self._collect(time.monotonic() + START_SECONDS)
        except BaseException:
            self.end()
            raise

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        for pipe in self.pipes:
            # The path first: arguments may be of classes that only a test folder of this session knows.
            pipe.send_bytes(pickle.dumps(sys.path))
            pipe.send_bytes(pickle.dumps((fn.__module__, fn.__qualname__, args)))
        return self._collect(time.monotonic() + timeout_seconds)

    def _collect(self, until: float) -> list[Any]:
        """One answer from every worker; after a first failure the others get a moment to fail too."""
        answers: dict[int, Any] = {}
        failures: list[WorkerFailed] = []
        open_pipes = dict(zip(self.pipes, range(len(self.pipes)), strict=True))
        while open_pipes:
            ready = wait(list(open_pipes), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                worker = open_pipes.pop(pipe)  # type: ignore[index]
                try:
                    ok, answer = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    self.processes[worker].join(5)
                    ok, answer = False, ("Died", f"exit code {self.processes[worker].exitcode}", "")
                if ok:
                    answers[worker] = answer
                else:
                    failures.append(WorkerFailed(worker, *answer))
                    until = min(until, time.monotonic() + 4.0)
        if failures:
            # The cause rather than its consequences: peers of a worker that fails are WorkerLost.
            failures.sort(key=lambda f: f.kind == "WorkerLost")
            raise failures[0]
        if open_pipes:
            late = sorted(open_pipes.values())
            raise WorkerFailed(late[0], "Timeout", f"workers {late} did not answer in time", "")
        return [answers[worker] for worker in range(len(self.pipes))]

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)


_groups: dict[tuple[int, float], _Group] = {}


def run_workers(
    fn: Callable[..., Any],
    num_workers: int,
    *args: Any,
    timeout_seconds: float = 120.0,
    deadline_seconds: float = 60.0,
    fresh: bool = False,
) -> list[Any]:
    """`fn(comm, *args)` on each of num_workers workers; their results, by worker."""
    if fresh:
        group = _Group(num_workers, deadline_seconds)
        try:
            return group.run(fn, args, timeout_seconds)
        finally:
            group.end()
    key = (num_workers, deadline_seconds)
    if key not in _groups:
        _groups[key] = _Group(num_workers, deadline_seconds)
    try:
        return _groups[key].run(fn, args, timeout_seconds)
    except BaseException:
        _groups.pop(key).end()
        raise


@atexit.register
def end_groups() -> None:
    while _groups:
        _groups.popitem()[1].end()


def _on_host(answer: Any) -> Any:
    """The same with tensors of a GPU in memory: the process that asked may have another device, or none."""
    if isinstance(answer, dict):
        return {key: _on_host(value) for key, value in answer.items()}
    if type(answer) in (list, tuple):
        return type(answer)(_on_host(value) for value in answer)
    return answer.cpu() if getattr(answer, "is_cuda", False) else answer


def _answer(pipe: Connection, ok: bool, answer: Any) -> None:
    # Plain pickle, not Connection.send: torch would pass tensors as handles to memory that dies with its process.
    pipe.send_bytes(pickle.dumps((ok, _on_host(answer))))


def _serve(
    pipe: Connection,
    worker: int,
    num_workers: int,
    port: int,
    listener: socket.socket | None,
    deadline_seconds: float,
    environment: dict[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # of the test that starts the group, not of the process that is forked
    os.environ.update(
        RANK=str(worker),
        WORLD_SIZE=str(num_workers),
        LOCAL_RANK=str(worker),
        LOCAL_WORLD_SIZE=str(num_workers),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    import importlib

    import torch

    from weft.comm import open_communicator

    torch.set_num_threads(1)
    _answer(pipe, True, None)
    try:
        pipe.recv_bytes()  # all are there
    except EOFError:
        os._exit(0)
    store = None
    if listener is not None:
        store = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    comm = open_communicator(deadline_seconds, "gloo", DEVICE)
    _answer(pipe, True, None)
    while True:
        try:
            sys.path[:] = pickle.loads(pipe.recv_bytes())
            module, name, args = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            break
        comm.sent = dict.fromkeys(comm.sent, 0)
        comm.step = "start"
        try:
            _answer(pipe, True, getattr(importlib.import_module(module), name)(comm, *args))
        except BaseException as error:
            _answer(pipe, False, (type(error).__name__, str(error), traceback.format_exc()))
            break
    sys.stdout.flush()
    time.sleep(2.0 if store is not None else 0.0)  # peers may still ask the store who is missing
    os._exit(0)
