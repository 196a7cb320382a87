"""Tasks in actors of a Ray cluster. Ray places the actors; messages are Ray's and are not sealed."""

import logging
import threading
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from weft.serverless.invoker import Lost, Usage
from weft.serverless.pool import SINGLE_THREAD
from weft_function.handler import handle
from weft_function.task import Request, Response
from weft_function.user_function import UserFunction


class _Worker:
    """The code of an actor."""

    def __init__(self, trust: tuple[str, ...]) -> None:
        UserFunction.trusted = trust

    def run(self, request: Request) -> Response:
        return handle(request, "actor")


class RayInvoker:
    """Actors with one processor each, in the cluster at RAY_ADDRESS or in one that is started on this machine."""

    name = "ray"

    def __init__(self, workers: int, trust: tuple[str, ...] = ()) -> None:
        ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True, logging_level=logging.ERROR)
        self._actor_class: Any = ray.remote(num_cpus=1, runtime_env={"env_vars": SINGLE_THREAD})(_Worker)
        self._trust, self._lock = trust, threading.Lock()
        self._actors: list[Any] = []
        self._loads: dict[Any, int] = {}
        self._usage = Usage()
        self.scale(workers)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        with self._lock:
            actor = min(self._actors, key=self._loads.__getitem__)
            self._loads[actor] += 1
            self._usage.attempts += 1
            self._usage.bytes_out += sum(tensor.nbytes for tensor in request.tensors.values())
        future: Future[Response] = Future()
        result = actor.run.remote(request).future()
        result.add_done_callback(lambda done: self._on_done(actor, done, future))
        return future

    def _on_done(self, actor: Any, done: "Future[Response]", future: "Future[Response]") -> None:
        error = done.exception()
        with self._lock:
            if actor in self._loads:
                self._loads[actor] -= 1
            if error is None:
                response = done.result()
                self._usage.tasks += 1
                self._usage.task_seconds += response.seconds
                self._usage.bytes_in += sum(tensor.nbytes for tensor in response.tensors.values())
            elif isinstance(error, RayActorError):
                self._usage.lost += 1
                self._replace(actor)
        if error is None:
            future.set_result(response)
        elif isinstance(error, RayActorError):
            future.set_exception(Lost(f"an actor has died: {' '.join(str(error).split())}"))
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
            self._usage.max_workers = max(self._usage.max_workers, len(self._actors))

    def usage(self) -> Usage:
        with self._lock:
            return Usage(**vars(self._usage))

    def close(self) -> None:
        with self._lock:
            for actor in list(self._actors):
                self._end(actor)
        ray.shutdown()

    def _start(self) -> None:
        actor = self._actor_class.remote(self._trust)
        self._actors.append(actor)
        self._loads[actor] = 0

    def _end(self, actor: Any) -> None:
        ray.kill(actor)
        self._actors.remove(actor)
        del self._loads[actor]

    def _replace(self, actor: Any) -> None:
        """Starts another actor for one that has died: once, however many tasks it had."""
        if actor in self._loads:
            self._actors.remove(actor)
            del self._loads[actor]
            self._start()
