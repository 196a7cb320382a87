"""Where tensor tasks run: one interface, whether it is this process, a pool of others, or a cloud's functions."""

from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Protocol

from weft_function.handler import handle
from weft_function.request import Answer, Request


class Throttled(RuntimeError):
    """The other side has too much to do: fewer at a time, and this one again later."""


class Lost(RuntimeError):
    """The worker of an attempt is gone, or its answer did not come in time: the task may be tried again."""


@dataclass
class Usage:
    """What an invoker has done so far; prices are applied to it elsewhere."""

    tasks: int = 0  # answers that came
    attempts: int = 0
    lost: int = 0
    throttled: int = 0
    refused: int = 0  # messages that were not ours, or not in order
    requests: int = 0  # invocations that are billed each
    workers: int = 0  # now
    most_workers: int = 0
    task_seconds: float = 0.0  # that functions worked on tasks
    function_seconds: float = 0.0  # that are billed: leases from their begin to their end
    init_seconds: float = 0.0  # of starting, billed too
    bytes_out: int = 0
    bytes_in: int = 0

    def __sub__(self, other: "Usage") -> "Usage":
        """What happened since; counts of now stay as they are."""
        kept = ("workers", "most_workers")
        return Usage(**{f.name: getattr(self, f.name) - (0 if f.name in kept else getattr(other, f.name))
                        for f in fields(self)})  # fmt: skip


class Invoker(Protocol):
    name: str

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        """Starts one attempt. The future ends with an Answer, Throttled, or Lost; callbacks come from any thread."""
        ...

    def scale(self, workers: int) -> None:
        """Wants so many workers from now on; returns at once."""
        ...

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Ends every worker that it started; nothing is left behind."""
        ...


class InlineInvoker:
    """Tasks done at once, here."""

    name = "inline"

    def __init__(self) -> None:
        self._usage = Usage(workers=1, most_workers=1)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        future: Future[Answer] = Future()
        answer = handle(request, "inline")
        self._usage.attempts += 1
        self._usage.tasks += 1
        self._usage.task_seconds += answer.seconds
        future.set_result(answer)
        return future

    def scale(self, workers: int) -> None: ...

    def usage(self) -> Usage:
        return Usage(**vars(self._usage))

    def close(self) -> None: ...
