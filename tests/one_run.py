"""Runs by the tests' own workers, which import torch once.

`trained(folder, settings)` trains and gives the summary. `on_warm_workers` stands in for `weft.results.launch_workers`:
tests/conftest.py puts it there in packages whose tests are about what workers compute, not about how they are started.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from tests.workers import WorkerFailed, run_workers
from weft.comm import Communicator
from weft.config import RunConfig, make_config
from weft.launch import worker
from weft.launch.ending import Ending
from weft.launch.handing import pack
from weft.launch.worker_main import main
from weft.layers import Given
from weft.run import prepare_folder
from weft.training.console import Console
from weft.training.loop import OnRecord


def trained(
    folder: Path, settings: dict[str, Any], resume: bool = False, stop_after: int | None = None
) -> dict[str, Any]:
    """Trains, or goes on, and stops after an epoch if told so; what the run says of itself."""
    config = make_config({**settings, "run": str(folder)})
    prepare_folder(config, folder, None, resume, overwrite=False)
    rest = ("quiet", *["resume"] * resume)
    codes = run_workers(
        _act, config.workers, "train", folder, rest, config.model_dump(mode="json"), stop_after, Path.cwd()
    )
    assert codes == [0 if stop_after is None else worker.EXIT_INTERRUPTED] * config.workers
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def on_warm_workers(
    config: RunConfig, verb: str, run: Path, *rest: str, model: Given | None = None, on_record: OnRecord | None = None
) -> Ending:
    """What the launcher would do, but on processes that are there already; they tell it of no epochs."""
    assert on_record is None
    handed = None if model is None else pack(model)
    kinds = {"UserError": (2, "user"), "WorkerLost": (1, "lost")}
    try:
        codes = run_workers(
            _act, config.workers, verb, run, rest, config.model_dump(mode="json"), None, Path.cwd(), handed
        )
    except WorkerFailed as failure:
        code, kind = kinds.get(failure.kind, (1, "error"))
        return Ending(code, kind, failure.message if kind == "user" else str(failure))
    return Ending(max(codes))


def _act(
    comm: Communicator,
    verb: str,
    run: Path,
    rest: tuple[str, ...],
    settings: dict[str, Any],
    stop_after: int | None,
    here: Path,
    handed: bytes | None = None,
) -> int:
    """A worker's part, in this folder; where it trains, the last worker gets SIGTERM after an epoch."""
    with _own_connections(comm), _stopped(comm, stop_after), chdir(here):
        try:
            main([verb, str(run), *rest], make_config(settings), handed)
        except SystemExit as stop:
            assert isinstance(stop.code, int)
            return stop.code


@contextmanager
def _own_connections(comm: Communicator) -> Iterator[None]:
    """A run uses the connections that these workers have, and leaves them open."""
    closing, opening = comm.close, worker.open_communicator
    comm.close = lambda: None  # type: ignore[method-assign]
    worker.open_communicator = lambda *_, **__: comm
    try:
        yield
    finally:
        comm.close, worker.open_communicator = closing, opening  # type: ignore[method-assign]


@contextmanager
def _stopped(comm: Communicator, after_epoch: int | None) -> Iterator[None]:
    def update(self: Console, record: dict[str, Any]) -> None:
        updating(self, record)
        if record["epoch"] == after_epoch and comm.worker == comm.num_workers - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    updating = Console.update
    Console.update = update  # type: ignore[method-assign]
    try:
        yield
    finally:
        Console.update = updating  # type: ignore[method-assign]
