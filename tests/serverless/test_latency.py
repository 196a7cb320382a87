"""Tasks of an epoch and their seconds: counted over all servers, by kind and place, as numpy would."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers import run_workers
from weft.comm import Communicator
from weft.config import make_config
from weft.run import start
from weft.serverless.invoker import INLINE
from weft.serverless.latency import FinishedTask, finished_task, summarise_tasks
from weft_function.task import Response, TaskKind

FORWARD, BACKWARD = TaskKind.APPLY_VERTEX, TaskKind.APPLY_VERTEX_BACK
COUNTS = (7, 40, 0)  # tasks of each server


def seconds_of(server: int) -> list[float]:
    return [float(value) for value in np.random.default_rng(server).uniform(0.001, 2.0, COUNTS[server]).round(6)]


def summarised(comm: Communicator) -> dict[str, Any]:
    tasks = [FinishedTask(FORWARD, seconds, "functions") for seconds in seconds_of(comm.worker)]
    if comm.worker == 1:
        tasks.append(FinishedTask(BACKWARD, 0.5, "servers"))
    return summarise_tasks(comm, tasks)


def test_every_server_has_the_figures_of_all() -> None:
    answers = run_workers(summarised, 3)
    everything = np.concatenate([seconds_of(server) for server in range(3)])
    wanted = {
        "tasks": 47,
        "median": np.median(everything),
        "p95": np.percentile(everything, 95, method="inverted_cdf"),
        "longest": everything.max(),
    }
    for answer in answers:
        assert set(answer) == {FORWARD, BACKWARD}
        assert answer[FORWARD] == {"functions": pytest.approx(wanted)}
        assert answer[BACKWARD] == {"servers": {"tasks": 1, "median": 0.5, "p95": 0.5, "longest": 0.5}}


def test_a_task_of_the_server_itself_takes_as_long_as_it_computes() -> None:
    assert finished_task(FORWARD, Response({}, 0.25, INLINE), 0.01) == (FORWARD, 0.25, "servers")
    assert finished_task(FORWARD, Response({}, 0.25, "worker-7"), 0.75) == (FORWARD, 0.75, "functions")


@pytest.mark.parametrize("name", ["inline", "pool"])
def test_every_tensor_task_is_in_the_record_of_its_epoch(tmp_path: Path, name: str) -> None:
    settings = {
        "data": "synthetic:tiny", "run": str(tmp_path / "run"), "threads": 1,
        "model": {"name": "gcn", "hidden": 4, "layers": 2}, "train": {"epochs": 3},
        "executor": {"name": name, "intervals": 5, "workers": 1, "placement": "functions"},
    }  # fmt: skip
    run = start(make_config(settings), quiet=True)
    place = "servers" if name == "inline" else "functions"
    for record in run.metrics:
        # of each interval: both stages forward, the last with its gradient, and the first one's adjoint
        assert {kind: own[place]["tasks"] for kind, own in record["tasks"].items()} == {FORWARD: 10, BACKWARD: 5}
        assert record["functions"]["tasks"] == 15
        for own in record["tasks"].values():
            assert set(own) == {place} and 0 < own[place]["median"] <= own[place]["p95"] <= own[place]["longest"]
