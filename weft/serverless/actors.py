"""Tasks in actors of a Ray cluster, for those who have one: they are placed, moved and restarted by Ray."""

import logging
import threading
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from weft.serverless.invoker import Lost, Usage
from weft_function.handler import handle
from weft_function.ops import Call
from weft_function.request import Answer, Request


class _Worker:
    """What an actor does."""

    def __init__(self, trust: tuple[str, ...]) -> None:
        Call.trusted = trust

    def do(self, request: Request) -> Answer:
        return handle(request, "actor")


class RayInvoker:
    """Actors of one processor each, in the cluster that RAY_ADDRESS names, or in one of this machine's own."""

    name = "ray"

    def __init__(self, workers: int, trust: tuple[str, ...] = ()) -> None:
        ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True, logging_level=logging.ERROR)
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._kind: Any = ray.remote(num_cpus=1, runtime_env={"env_vars": single})(_Worker)
        self._trust, self._lock = trust, threading.Lock()
        self._actors: list[Any] = []
        self._loads: dict[Any, int] = {}
        self._usage = Usage()
        self.scale(workers)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        with self._lock:
            actor = min(self._actors, key=self._loads.__getitem__)
            self._loads[actor] += 1
            self._usage.attempts += 1
            self._usage.bytes_out += sum(tensor.nbytes for tensor in request.tensors.values())
        future: Future[Answer] = Future()
        done = actor.do.remote(request).future()
        done.add_done_callback(lambda ended: self._landed(actor, ended, future))
        return future

    def _landed(self, actor: Any, ended: "Future[Answer]", future: "Future[Answer]") -> None:
        error = ended.exception()
        with self._lock:
            if actor in self._loads:
                self._loads[actor] -= 1
            if error is None:
                answer = ended.result()
                self._usage.tasks += 1
                self._usage.task_seconds += answer.seconds
                self._usage.bytes_in += sum(tensor.nbytes for tensor in answer.tensors.values())
            elif isinstance(error, RayActorError):
                self._usage.lost += 1
                self._replace(actor)
        if error is None:
            future.set_result(answer)
        elif isinstance(error, RayActorError):
            future.set_exception(Lost(f"an actor is gone: {' '.join(str(error).split())}"))
        else:
            cause = error.cause if isinstance(error, RayTaskError) else error
            future.set_exception(RuntimeError(f"{type(cause).__name__}: {cause}"))

    def scale(self, workers: int) -> None:
        with self._lock:
            while len(self._actors) < max(1, workers):
                self._start()
            while len(self._actors) > max(1, workers):
                idle = [actor for actor in self._actors if not self._loads[actor]]
                if not idle:
                    break
                self._end(idle[0])
            self._usage.workers = len(self._actors)
            self._usage.most_workers = max(self._usage.most_workers, len(self._actors))

    def usage(self) -> Usage:
        with self._lock:
            return Usage(**vars(self._usage))

    def close(self) -> None:
        with self._lock:
            for actor in list(self._actors):
                self._end(actor)
        ray.shutdown()

    def _start(self) -> None:
        actor = self._kind.remote(self._trust)
        self._actors.append(actor)
        self._loads[actor] = 0

    def _end(self, actor: Any) -> None:
        ray.kill(actor)
        self._actors.remove(actor)
        del self._loads[actor]

    def _replace(self, actor: Any) -> None:
        """Once for each actor that is gone, however many tasks it had."""
        if actor in self._loads:
            self._actors.remove(actor)
            del self._loads[actor]
            self._start()
