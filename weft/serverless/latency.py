"""How many tensor tasks an epoch had, where they ran, and how long each took."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.comm import Communicator, gather_texts
from weft.serverless.invoker import INLINE
from weft_function.task import Response, TaskKind

FUNCTIONS, SERVERS = "functions", "servers"


class FinishedTask(NamedTuple):
    kind: TaskKind
    seconds: float  # from its attempt until the response was here; of a task that a server ran itself, computation
    place: str


def finished_task(kind: TaskKind, response: Response, seconds: float) -> FinishedTask:
    if response.worker == INLINE:
        return FinishedTask(kind, response.seconds, SERVERS)
    return FinishedTask(kind, seconds, FUNCTIONS)


def summarise_tasks(comm: Communicator, finished: Sequence[FinishedTask]) -> dict[str, dict[str, dict[str, float]]]:
    """The number and the seconds of all servers' tasks, by kind and place, alike on every server. Collective."""
    mine: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task in finished:
        mine[task.kind][task.place].append(round(task.seconds, 7))
    everyone: list[dict[str, Any]] = [json.loads(text) for text in gather_texts(comm, json.dumps(mine), "latencies")]
    return {
        kind: {
            place: _describe(seconds)
            for place in (FUNCTIONS, SERVERS)
            if (seconds := [value for one in everyone for value in one.get(kind, {}).get(place, [])])
        }
        for kind in TaskKind
        if any(kind in one for one in everyone)
    }


def _describe(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {"tasks": len(ordered), "median": statistics.median(ordered), "p95": p95, "longest": ordered[-1]}
