"""Training, as Python and the command line ask for it: `train` and `start` make a run and return it."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from weft import results
from weft.comm import Communicator
from weft.config import RunConfig, make_config, merge
from weft.disk import InUse, scratch_folder, writing
from weft.errors import StopTraining, Terminated, UserError, WorkerLost
from weft.graph import Graph, as_graph, open_graph, save_graph
from weft.launch import worker
from weft.launch.ending import Ending, RunFailed
from weft.launch.launcher import EXITS_INTERRUPTED
from weft.launch.parent import guard
from weft.launch.source import reference_of
from weft.layers import GIVEN, Given
from weft.partitioning import whole_shard
from weft.prepare import Kept, folder_kind, prepare_data
from weft.results import Run, check_ending
from weft.training.identity import describe_graph, describe_settings, refuse_other_graph, refuse_other_settings
from weft.training.loop import OnRecord
from weft.training.resume import peek
from weft.training.runfolder import RunFolder, check_free
from weft.training.runlock import hold_run, is_free
from weft.training.tracking import check_trackers
from weft.trust import TOKEN
from weft.trust import record as record_trust

Settings = Mapping[str, Any]
OnEpoch = Callable[[dict[str, Any]], object]  # returns False where the run is to end
GRAPH = "graph"  # where a run keeps a graph that it was given as an object
RESTARTABLE = ("killed", "lost")  # ends of workers after which a run may go on by itself
LONGEST_PAUSE_SECONDS = 60


def train(
    data: Any = "synthetic:demo",
    model: str | Given | Settings = "gcn",
    strategy: str = "full",
    workers: int = 1,
    run: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    restarts: int = 0,
    on_epoch: OnEpoch | None = None,
    **settings: Any,
) -> Run:
    """Trains a model and returns its run.

    >>> graph = weft.load("synthetic:tiny")
    >>> run = weft.train(graph, model="sage", quiet=True, train={"epochs": 5}, optim={"lr": 0.01}, seed=1)
    >>> run.summary["epochs"], 0 < run.summary["test_accuracy"] <= 1
    (5, True)

    `data` is a Graph, a data set's name, the path of a graph, a partition or an .npz file, or a graph of PyG, DGL or
    networkx, which is taken over as `weft.from_pyg` and its like do by default. `model` is a name, a
    callable (num_in, num_out, config) -> Module, a Module, whose weights are the start and which stays as it is, or the
    `model` section of a config; what a script or notebook defines is handed to workers as source text. `strategy` is
    one of those that `weft settings` lists. `run` is the folder of the run, by default runs/DATA-MODEL-N; with
    `resume` the run in it goes on, with `overwrite` it is replaced. `restarts`: how often it goes on by itself after a
    worker was lost. `on_epoch` is called in this process with each epoch's record, a dict as in `run.metrics`; where it
    returns False or raises `weft.StopTraining` the run ends there with its best weights, and any other exception of it
    ends the workers and is raised. Further settings are those of the config, by section.

    Raises a UserError where a worker found a mistake of the user's, and RunFailed where one was lost or failed.
    """
    graph = None if isinstance(data, str | Path) else as_graph(data)
    section, given_model = model_section(model)
    given = {
        "data": graph.name if graph else str(data),
        "strategy": strategy,
        "workers": workers,
        "run": run and str(run),
    }
    config = make_config(merge(settings, {**given, "model": section}))
    return start(config, resume, overwrite, graph, quiet, restarts, given_model, on_epoch)


def start(
    config: RunConfig,
    resume: bool = False,
    overwrite: bool = False,
    graph: Graph | None = None,
    quiet: bool = False,
    restarts: int = 0,
    model: Given | None = None,
    on_epoch: OnEpoch | None = None,
) -> Run:
    """Trains as a config says; under torchrun this process is one of the workers.

    `model`: where it is given as an object. The rest is as for `train`.
    """
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if under_torchrun and not config.run:
        raise UserError("under torchrun every worker must know the run folder: give --run DIR")
    if under_torchrun and restarts:
        raise UserError("under torchrun it is torchrun that starts workers again: use its --max-restarts, and --resume")
    named, path = not config.run, Path(config.run) if config.run else free_run_folder(config)
    check_trackers(config.track)
    guard(config.deadline_seconds)
    data = config.data if graph is None else str(path / GRAPH)
    config = config.model_copy(update={"run": str(path), "data": data})
    if resume:
        config = with_earlier_choice(config, path)
    leads = not under_torchrun or os.environ["RANK"] == "0"
    fresh = is_free(path)
    watch = None if on_epoch is None else partial(goes_on, on_epoch)
    locks = ExitStack()
    try:
        if leads:
            locks.enter_context(hold_run(path, made=named))
            prepare_folder(config, path, graph, resume, overwrite)
            record_trust(path, config.model.name)
        if under_torchrun or (config.workers == 1 and not restarts):
            ending = Ending(worker.train(path, resume, quiet, config, model, watch))
        else:
            ending = _train(config, path, resume, quiet, restarts, model, watch)
        if ending.code == worker.EXIT_INTERRUPTED:
            if leads and not quiet:
                _say_how_to_go_on(path)
            raise SystemExit(ending.code)
        check_ending(ending)
    except InUse:
        raise  # the folder is another process's
    except (Exception, KeyboardInterrupt, Terminated) as error:
        lost = isinstance(error, WorkerLost) or (isinstance(error, RunFailed) and error.kind in RESTARTABLE)
        if leads and fresh and not lost and not RunFolder(path).metrics_file.exists():
            RunFolder(path).discard()  # it never trained: nothing incomplete stays
            (path / TOKEN).unlink(missing_ok=True)
        elif leads and not quiet and _is_interruption(error):
            _say_how_to_go_on(path)
        raise
    finally:
        locks.close()
    return Run(path, model)


def _is_interruption(error: BaseException) -> bool:
    stopped = isinstance(error, RunFailed) and error.code in EXITS_INTERRUPTED
    return stopped or isinstance(error, KeyboardInterrupt | Terminated)


def _say_how_to_go_on(path: Path) -> None:
    """Prints the command that goes on with an interrupted run."""
    command = f"weft train --run {shlex.quote(str(path))} --resume"
    if "WORLD_SIZE" in os.environ:
        command = "the same command under torchrun, with --resume"
    print(f"the run was interrupted; go on with: {command}", file=sys.stderr, flush=True)


def _train(
    config: RunConfig,
    path: Path,
    resume: bool,
    quiet: bool,
    restarts: int,
    model: Given | None = None,
    watch: OnRecord | None = None,
) -> Ending:
    """Workers of this machine, started again after one was lost or killed, from the newest checkpoint."""
    done = 0
    while True:
        words = [*["resume"] * resume, *["quiet"] * quiet, *["watched"] * (watch is not None)]
        ending = results.launch_workers(config, "train", path, *words, model=model, on_record=watch)
        if ending.kind not in RESTARTABLE or done == restarts:
            return ending
        pause = min(LONGEST_PAUSE_SECONDS, 2**done)
        done += 1
        print(f"restart {done} of {restarts} in {pause} s: {ending.text}", file=sys.stderr, flush=True)
        time.sleep(pause)
        config, resume = with_earlier_choice(config, path), True


def compare_plans(config: RunConfig, megabits: float | None = None, latency: float | None = None) -> dict[str, Any]:
    """What each plan would take of this run, counted and modelled; nothing is trained, and nothing stays on disk."""
    with scratch_folder("plan") as scratch:
        path, file = scratch / "run", scratch / "plans.json"
        config = config.model_copy(update={"run": str(path)})
        prepare_folder(config, path, None, resume=False, overwrite=False)
        if config.workers == 1:
            worker.compare_plans(path, file, megabits, latency)
        else:
            given = ("" if value is None else str(value) for value in (megabits, latency))
            check_ending(results.launch_workers(config, "plan", path, str(file), *given))
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def prepare_folder(config: RunConfig, path: Path, graph: Graph | None, resume: bool, overwrite: bool) -> None:
    """A folder with all that workers need. What a resumed run has written is left as it is: see `RunFolder.go_on`."""
    check_free(path, resume=resume, overwrite=overwrite)
    settings = config.model_dump(mode="json")
    fresh = not RunFolder(path).exists()
    newest = peek(RunFolder(path).checkpoints) if resume else None
    if newest is not None:  # before anything is changed
        then = newest.manifest["run"]
        refuse_other_settings(then["settings"], describe_settings(settings), str(newest.path))
        if graph is not None:
            now = describe_graph(whole_shard(graph), Communicator.alone())
            refuse_other_graph(then["graph"], now, str(newest.path))
    data = None if fresh else RunFolder(path).config().get("data")
    if fresh:
        RunFolder.create(path, settings)
    if graph is not None and (newest is None or folder_kind(path / GRAPH) is None):
        save_graph(graph, path / GRAPH, overwrite=True)
    elif overwrite and not fresh and config.workers == 1 and folder_kind(config.data) is None:
        open_graph(config.data)  # a mistake in it must show before anything that lies here is removed
    kept = Kept(data, None if newest is None else newest.manifest["run"]["graph"]["fingerprint"])
    prepare_data(config, path, kept if resume and (newest is not None or graph is None) else None)
    if overwrite and not fresh:  # only now: what lay there is lost when the new run can start, not before
        RunFolder.create(path, settings, overwrite=True)


def with_earlier_choice(config: RunConfig, path: Path) -> RunConfig:
    """Where strategy auto chose when the run began, that choice."""
    if config.strategy != "auto" or not RunFolder(path).exists():
        return config
    earlier = Run(path).config
    chosen = ("strategy", "exchange", "sample", "memory")
    return (
        config
        if earlier.strategy == "auto"
        else config.model_copy(update={name: getattr(earlier, name) for name in chosen})
    )


def free_run_folder(config: RunConfig) -> Path:
    """runs/DATA-MODEL-N with the first N that is free."""
    data = Path(config.data).stem.replace(":", "-").split("?")[0] or "data"
    stem = f"{data}-{config.model.name.split(':')[-1]}"
    number = 1
    while True:
        path = Path("runs") / f"{stem}-{number}"
        with writing(path), suppress(FileExistsError):
            path.parent.mkdir(exist_ok=True)
            path.mkdir()  # taken by that: another run that starts now gets another number
            return path
        number += 1


def goes_on(on_epoch: OnEpoch, record: dict[str, Any]) -> bool:
    """What `on_epoch` says of an epoch."""
    try:
        return on_epoch(record) is not False
    except StopTraining:
        return False


def model_section(model: str | Given | Settings) -> tuple[dict[str, Any], Given | None]:
    """The `model` section of a config, and the model itself where it is given as an object that has no other name."""
    section = dict(model) if isinstance(model, Mapping) else {"name": model}
    given = section.get("name", "gcn")
    if isinstance(given, str):
        return section, None
    if not callable(given):
        raise UserError(
            f"a model is a name, a function that builds one, or a torch.nn.Module, not a {type(given).__name__}"
        )
    found = None if isinstance(given, nn.Module) else reference_of(given)
    if found is not None:
        return {**section, "name": ":".join(found)}, None
    name = getattr(given, "__name__", type(given).__name__)
    return {**section, "name": f"{GIVEN}:{name}"}, given
