"""Runs in the trackers that people look at: TensorBoard, MLflow, Weights & Biases (`--track`).

Worker 0 tells them the settings at the start, the numbers of every epoch with figures of its process, and gives them
the report at the end. Which run of a tracker is this one stands in RUN/track.json, so that a resumed run goes on in it.
A tracker that cannot be reached at the start ends the run with a sentence; one that fails later is left out.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from weft.disk.atomic import write_atomically
from weft.disk.reading import read_json
from weft.errors import UserError, describe_error, not_installed
from weft.training.machine import peak_gpu_bytes, peak_rss_bytes, rss_bytes
from weft.training.plain import flat_numbers, flatten, plain
from weft.training.runfolder import RunFolder
from weft.training.settings import TrackConfig

PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}  # TensorBoard's files need none but weft's own


class Tracker(Protocol):
    """One tracker, of one run. `last_epoch`: the last one that it has of the run already."""

    last_epoch: int

    def begin(self, run: "TrackedRun") -> Mapping[str, str]:
        """Opens the run, or goes on with it; returns what finds it again."""

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Takes the numbers of an epoch."""

    def end(self, status: str, results: Mapping[str, float], files: Sequence[Path]) -> None:
        """Closes the run: it has finished, was interrupted, or failed."""


class TrackedRun:
    """What trackers are told of a run at its start. `known`: what the same tracker returned when the run began."""

    def __init__(self, folder: RunFolder, settings: Mapping[str, Any], known: Mapping[str, str], resume: bool) -> None:
        self.folder = folder
        self.name = folder.path.resolve().name
        self.settings = flatten(plain(settings))
        self.project = str(settings["track"]["project"])
        self.known = known
        self.recorded = folder.metrics()[-1]["epoch"] if resume and folder.metrics() else 0


class Tracked:
    """The trackers of a run; of a worker that does not lead it, none."""

    def __init__(self, trackers: dict[str, Tracker] | None = None, device: torch.device | None = None) -> None:
        self._trackers = trackers or {}
        self._figures = SystemFigures(device or torch.device("cpu"))

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Tells them of an epoch, once: what a resumed run does again they have."""
        if not self._trackers:
            return
        number, numbers = int(record["epoch"]), flat_numbers(record) | self._figures.now()
        for name, tracker in list(self._trackers.items()):
            if number > tracker.last_epoch:
                self._attempt(name, lambda tracker=tracker: tracker.epoch(number, numbers))  # type: ignore[misc]

    def end(self, status: str, summary: Mapping[str, Any] | None = None, files: Sequence[Path] = ()) -> None:
        """Closes them. summary: None where the run failed."""
        results = {name: value for name, value in flat_numbers(summary or {}).items() if "/" not in name}
        for name in list(self._trackers):
            tracker = self._trackers[name]
            self._attempt(name, lambda tracker=tracker: tracker.end(status, results, files))  # type: ignore[misc]
        self._trackers = {}

    @property
    def any(self) -> bool:
        return bool(self._trackers)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a package of others raises: training is worth more
            del self._trackers[name]
            print(f"note: {name} is left out from here on: {describe_error(error)}", file=sys.stderr, flush=True)


@contextmanager
def tracked(settings: Mapping[str, Any], folder: RunFolder, device: torch.device, resume: bool) -> Iterator[Tracked]:
    """Opens the trackers that the settings name; an exception in the block closes them as those of a failed run."""
    track = TrackConfig.model_validate(settings["track"])
    known = _read(folder.track_file) if resume else {}
    trackers: dict[str, Tracker] = {}
    for name in dict.fromkeys(track.to):
        run = TrackedRun(folder, settings, known.get(name, {}), resume)
        tracker = _make(name)
        try:
            known[name] = dict(tracker.begin(run))
        except Exception as error:
            Tracked(trackers).end("failed")
            raise UserError(f"{name} does not take the run ({describe_error(error)}): mend that, or leave it out of "
                            "--track") from error  # fmt: skip
        trackers[name] = tracker
    if trackers:
        write_atomically(folder.track_file, json.dumps(known, indent=1) + "\n")
    found = Tracked(trackers, device)
    try:
        yield found
    except BaseException:
        found.end("failed")
        raise


def check_trackers(track: TrackConfig) -> None:
    """Refuses a tracker whose package is not there, before anything is done."""
    for name in track.to:
        if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
            raise not_installed(PACKAGES[name], f"tracking by {name}")


def _make(name: str) -> Tracker:
    from weft.training import trackers  # here: their packages take seconds to import

    return trackers.KINDS[name]()


def _read(file: Path) -> dict[str, dict[str, str]]:
    if not os.path.lexists(file):
        return {}
    found = read_json(file, "remove it, and trackers begin a run of their own")
    if not isinstance(found, dict) or not all(isinstance(own, dict) for own in found.values()):
        raise UserError(f"{file} does not say which runs trackers have: remove it, and they begin one of their own")
    return found


class SystemFigures:
    """What the process of worker 0 takes, and how busy its host is, since they were last asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._at = time.perf_counter(), time.process_time()

    def now(self) -> dict[str, float]:
        at = time.perf_counter(), time.process_time()
        (wall, busy), self._at = (new - old for new, old in zip(at, self._at, strict=True)), at
        figures = {
            "rss_bytes": float(rss_bytes()),
            "peak_rss_bytes": float(peak_rss_bytes()),
            "busy_cores": busy / wall if wall else 0.0,
            "host_load": os.getloadavg()[0],
        }
        if self._device.type == "cuda":
            figures["peak_gpu_bytes"] = float(peak_gpu_bytes(self._device))
        return {f"system/{name}": value for name, value in figures.items()}
