"""Runs, as Python sees them: `train` makes one, `Run` reads one."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from weft import worker
from weft.config import RunConfig, make_config, merge
from weft.errors import UserError
from weft.graph import Graph, open_graph, save_graph
from weft.graph.files import Array
from weft.launch import launch
from weft.prepare import folder_kind, prepare_data, vertex_names
from weft.train.runfolder import RunFolder, check_free

Settings = Mapping[str, Any]
GRAPH = "graph"  # where a run keeps a graph that it was given as an object


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    path: Path

    @property
    def config(self) -> RunConfig:
        return make_config(RunFolder.open(self.path).config())

    @property
    def summary(self) -> dict[str, Any]:
        summary = RunFolder.open(self.path).summary()
        if summary is None:
            raise UserError(f"{self.path} has not finished: go on with it by --resume")
        return summary

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return list(RunFolder.open(self.path).metrics())

    def evaluate(self) -> dict[str, float]:
        """The metric on each split, exact, over the whole graph, with the best weights."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "values.json"
            if self.config.workers == 1:
                return worker.evaluate(self.path)[0]
            _check(launch_workers(self.config, "evaluate", self.path, str(file)))
            values: dict[str, float] = json.loads(file.read_text())
            return values

    def outputs(self) -> "Outputs":
        """What the model says of every vertex, in the graph's order."""
        with tempfile.TemporaryDirectory() as scratch:
            if self.config.workers == 1:
                worker.export(self.path, Path(scratch))
            else:
                _check(launch_workers(self.config, "export", self.path, scratch))
            values = _joined(Path(scratch), self.config.workers)
        names = vertex_names(self.config, self.path)
        ids = np.arange(len(values)) if names.original_ids is None else names.original_ids
        return Outputs(ids, values, names.class_names, names.multi_label)


def _joined(folder: Path, workers: int) -> Array:
    """All workers' outputs in the graph's order: one array, into which theirs are read piece by piece."""
    ids = [np.load(folder / f"{piece}-ids.npy") for piece in range(workers)]
    logits = [np.load(folder / f"{piece}-logits.npy", mmap_mode="r") for piece in range(workers)]
    values = np.empty((sum(map(len, ids)), logits[0].shape[1]), logits[0].dtype)
    for rows, piece in zip(ids, logits, strict=True):
        values[rows] = piece
    return values


@dataclass(frozen=True)
class Outputs:
    ids: Array  # [N] as in the user's own files
    values: Array  # float [N, C]
    class_names: tuple[str, ...] | None
    multi_label: bool


def train(
    data: str | Path | Graph = "synthetic:demo",
    model: str | Callable[..., nn.Module] | Settings = "gcn",
    strategy: str = "full",
    workers: int = 1,
    run: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Trains a model and returns its run.

    `data` is a Graph, a data set's name, or the path of a graph, a partition or an .npz file. `model` is a name, a
    callable (num_in, num_out, config) -> Module that workers can import, or the `model` section of a config. Further
    settings are those of the config: train(..., train={"epochs": 50}, optim={"lr": 0.01}, seed=1).
    """
    graph = data if isinstance(data, Graph) else None
    section = model if isinstance(model, Mapping) else {"name": model if isinstance(model, str) else reference(model)}
    given = {
        "data": graph.name if graph else str(data),
        "strategy": strategy,
        "workers": workers,
        "run": run and str(run),
    }
    config = make_config(merge(settings, {**given, "model": {**settings.pop("model", {}), **section}}))
    return start(config, resume, overwrite, graph, quiet)


def start(
    config: RunConfig, resume: bool = False, overwrite: bool = False, graph: Graph | None = None, quiet: bool = False
) -> Run:
    """Trains as a config says; under torchrun this process is one of the workers."""
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    path = Path(config.run) if config.run else free_run_folder(config)
    if under_torchrun and not config.run:
        raise UserError("under torchrun every worker must know the run folder: give --run DIR")
    data = config.data if graph is None else str(path / GRAPH)
    config = config.model_copy(update={"run": str(path), "data": data})
    leads = not under_torchrun or os.environ["RANK"] == "0"
    fresh = not path.exists()
    try:
        if leads:
            _prepare_folder(config, path, graph, resume, overwrite)
        if under_torchrun or config.workers == 1:
            code = worker.train(path, resume, quiet, config)
        else:
            code = launch_workers(config, "train", path, *["resume"] * resume, *["quiet"] * quiet)
        if code == worker.EXIT_INTERRUPTED:
            raise SystemExit(code)
        _check(code)
    except (Exception, KeyboardInterrupt):
        if leads and fresh and not RunFolder(path).metrics_file.exists():
            shutil.rmtree(path, ignore_errors=True)  # it never trained: nothing half-made stays
        raise
    return Run(path)


def weigh(config: RunConfig, megabits: float | None = None, latency: float | None = None) -> dict[str, Any]:
    """What each plan would take of this run, counted and modelled; nothing is trained, and nothing stays on disk."""
    with tempfile.TemporaryDirectory(prefix="weft-plan-") as scratch:
        path, file = Path(scratch) / "run", Path(scratch) / "plans.json"
        config = config.model_copy(update={"run": str(path)})
        _prepare_folder(config, path, None, resume=False, overwrite=False)
        if config.workers == 1:
            worker.weigh_plans(path, file, megabits, latency)
        else:
            given = ("" if value is None else str(value) for value in (megabits, latency))
            _check(launch_workers(config, "plan", path, str(file), *given))
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def _prepare_folder(config: RunConfig, path: Path, graph: Graph | None, resume: bool, overwrite: bool) -> None:
    check_free(path, resume=resume, overwrite=overwrite)
    fresh, settings = not path.exists(), config.model_dump(mode="json")
    if fresh:
        RunFolder.create(path, settings)
    if graph is not None:
        save_graph(graph, path / GRAPH, overwrite=True)
    elif overwrite and not fresh and config.workers == 1 and folder_kind(config.data) is None:
        open_graph(config.data)  # a mistake in it must show before anything that lies here is removed
    prepare_data(config, path, reuse=resume)
    if not fresh:  # only now: what lay there is lost when the new run can start, not before
        RunFolder.create(path, settings, resume=resume, overwrite=overwrite)


def launch_workers(config: RunConfig, verb: str, run: Path, *rest: str) -> int:
    return launch(
        "weft.worker_main",
        [verb, str(run), *rest],
        config.workers,
        config.threads,
        deadline_seconds=config.deadline_seconds,
    )


def free_run_folder(config: RunConfig) -> Path:
    """runs/DATA-MODEL-N with the first N that is free."""
    data = Path(config.data).stem.replace(":", "-").split("?")[0] or "data"
    stem = f"{data}-{config.model.name.split(':')[-1]}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


def reference(model: Callable[..., nn.Module]) -> str:
    """`package.module:name` of a callable, by which workers import it."""
    if model.__module__ == "__main__" or "<" in model.__qualname__:
        raise UserError(f"workers cannot import {model.__qualname__} from {model.__module__}: put it into a module")
    return f"{model.__module__}:{model.__qualname__}"


class RunFailed(RuntimeError):
    """Workers failed; what went wrong has been printed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the run failed with exit code {code}")
        self.code = code


def _check(code: int) -> None:
    if code:
        raise RunFailed(code)
