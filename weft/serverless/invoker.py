"""Invokers run tensor tasks: one interface for this process, a pool of worker processes, and cloud functions."""

from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Protocol

from weft_function.handler import handle
from weft_function.task import Request, Response

INLINE = "inline"  # the name of the worker that a graph server itself is
DEADLINE_SECONDS = 300.0  # tasks wait so long for a worker, and workers for a server


class Throttled(RuntimeError):
    """The service is overloaded: the attempt must be repeated later, with fewer attempts at once."""


class Lost(RuntimeError):
    """An attempt failed because its worker disconnected or did not respond in time: the task can be tried again."""


@dataclass
class Usage:
    """What an invoker has done so far. `weft.serverless.prices` computes what it costs."""

    tasks: int = 0  # responses received
    attempts: int = 0
    lost: int = 0  # attempts
    throttled: int = 0
    refused: int = 0  # messages that were not authentic or not well formed
    requests: int = 0  # billed invocations
    workers: int = 0  # now
    max_workers: int = 0
    task_seconds: float = 0.0  # of computation in functions
    function_seconds: float = 0.0  # billed: from the start to the end of leases
    init_seconds: float = 0.0  # billed: of starting functions
    bytes_out: int = 0
    bytes_in: int = 0

    def __sub__(self, other: "Usage") -> "Usage":
        """The usage since `other`. Numbers of workers are not subtracted."""
        kept = ("workers", "max_workers")
        return Usage(**{f.name: getattr(self, f.name) - (0 if f.name in kept else getattr(other, f.name))
                        for f in fields(self)})  # fmt: skip


class Invoker(Protocol):
    name: str

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        """Starts one attempt. The future ends with a Response, Throttled or Lost, in any thread."""
        ...

    def scale(self, workers: int) -> None:
        """Sets the target number of workers, and returns at once."""
        ...

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Ends every worker that this invoker started."""
        ...


class InlineInvoker:
    """Runs tasks at once, in the caller's thread."""

    name = INLINE

    def __init__(self) -> None:
        self._usage = Usage(workers=1, max_workers=1)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        future: Future[Response] = Future()
        response = handle(request, INLINE)
        self._usage.attempts += 1
        self._usage.tasks += 1
        self._usage.task_seconds += response.seconds
        future.set_result(response)
        return future

    def scale(self, workers: int) -> None: ...

    def usage(self) -> Usage:
        return Usage(**vars(self._usage))

    def close(self) -> None: ...
