"""What a report shows of a run, read from its folder; what is missing there is left out."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import UserError
from weft.report.spans import EpochTrace, one_epoch
from weft.report.values import mapping, number, numbers
from weft.training.metrics import lower_is_better
from weft.training.runfolder import Record, RunFolder
from weft.training.runlock import is_written
from weft.training.trace import parse_trace

TaskTimes = dict[tuple[str, str], dict[str, float]]
TASK_FIGURES = {"tasks", "median", "p95", "longest"}  # the number of tasks, and seconds
SHOWN_BYTE_CLASSES = ("features", "hidden_forward", "hidden_backward", "gradients", "ids", "topology", "control")


@dataclass(frozen=True)
class RunData:
    """A run as it lies in its folder. `problems` are sentences about what could not be read."""

    name: str
    path: Path
    config: dict[str, Any]
    records: list[Record]
    summary: dict[str, Any]
    trace: EpochTrace | None
    problems: list[str] = field(default_factory=list)
    is_training: bool = False  # a process writes it, as far as can be seen from here

    @property
    def status(self) -> str:
        status = self.summary.get("status")
        if not self.summary:
            return "training" if self.is_training else "unfinished"
        return str(status) if status else "finished"

    @property
    def warnings(self) -> list[str]:
        """What the run told its user beside the numbers."""
        notes = self.summary.get("notes")
        return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []

    @property
    def metric(self) -> str:
        """The metric's name: what the summary says, else the first that an epoch has."""
        if self.summary.get("metric"):
            return str(self.summary["metric"])
        names = [key[4:] for record in self.records for key in record if key.startswith("val_")]
        return next((name for name in names if name != "loss"), "accuracy")

    @property
    def num_epochs(self) -> int:
        return int(self.records[-1]["epoch"]) if self.records else 0

    @property
    def num_workers(self) -> int | None:
        workers = number(self.summary.get("workers")) or number(self.config.get("workers"))
        return None if workers is None else int(workers)

    @property
    def best_epoch(self) -> int | None:
        best = number(self.summary.get("best_epoch"))
        if best is not None:
            return int(best)
        sign = -1 if lower_is_better(self.metric) else 1
        values = [(sign * value, -epoch) for epoch, value in self.curve(f"val_{self.metric}") if value is not None]
        return -int(max(values)[1]) if values else None

    def curve(self, key: str) -> list[tuple[float, float | None]]:
        """(epoch, value) where the key was recorded; no number is None."""
        return [(record["epoch"], number(record[key])) for record in self.records if key in record]

    def result(self, split: str) -> float | None:
        """The metric on a split: the summary's, else that of the best epoch so far."""
        value = number(self.summary.get(f"{split}_{self.metric}"))
        if value is not None:
            return value
        at = dict(self.curve(f"{split}_{self.metric}"))
        return at.get(self.best_epoch) if self.best_epoch is not None else None

    def epoch_seconds(self, which: str = "median") -> float | None:
        """median or total over the epochs."""
        value = number(mapping(self.summary.get("epoch_seconds")).get(which))
        seconds = [s for _, s in self.curve("seconds") if s is not None]
        if value is not None or not seconds:
            return value
        return statistics.median(seconds) if which == "median" else sum(seconds)

    def bytes_by_epoch(self) -> list[tuple[int, dict[str, float]]]:
        return [(r["epoch"], numbers(r["wire_bytes"])) for r in self.records if "wire_bytes" in r]

    def bits_chosen(self) -> list[tuple[int, dict[tuple[str, str], dict[str, float]]]]:
        """(epoch, rows by bits for each layer and direction), whenever bits of rows were chosen."""
        return [
            (
                record["epoch"],
                {
                    (layer, direction): numbers(counts)
                    for layer, directions in sorted(mapping(record["bits"]).items())
                    for direction, counts in sorted(mapping(directions).items(), reverse=True)
                },
            )
            for record in self.records
            if "bits" in record
        ]

    def cost(self) -> dict[str, float]:
        """Dollars of all epochs by what they were paid for, and an epoch's median value; empty without prices."""
        epochs = [numbers(record["cost"]) for record in self.records if "cost" in record]
        names = dict.fromkeys(name for costs in epochs for name in costs)
        spent = {name: sum(costs.get(name, 0.0) for costs in epochs) for name in names}
        if "value" in spent:
            spent["value"] = statistics.median(costs.get("value", 0.0) for costs in epochs)
        return spent

    def function_usage(self) -> dict[str, float]:
        """What functions did in an epoch: medians; empty in a run without functions."""
        epochs = [numbers(record["functions"]) for record in self.records if "functions" in record]
        names = dict.fromkeys(name for used in epochs for name in used)
        return {name: statistics.median(used.get(name, 0.0) for used in epochs) for name in names}

    def tasks_by_epoch(self) -> list[tuple[int, TaskTimes]]:
        """(epoch, tensor tasks) where they were recorded: by (kind, place) their number and seconds."""
        return [
            (
                record["epoch"],
                {
                    (str(kind), str(place)): figures
                    for kind, places in mapping(record["tasks"]).items()
                    for place, own in mapping(places).items()
                    if (figures := numbers(own)).keys() >= TASK_FIGURES
                },
            )
            for record in self.records
            if "tasks" in record
        ]

    def tasks(self) -> TaskTimes:
        """The tensor tasks of an epoch: medians over the epochs; of the longest ones, the longest."""
        epochs = [tasks for _, tasks in self.tasks_by_epoch()]
        found: TaskTimes = {}
        for key in dict.fromkeys(key for tasks in epochs for key in tasks):
            own = [tasks[key] for tasks in epochs if key in tasks]
            found[key] = {name: statistics.median(figures[name] for figures in own) for name in TASK_FIGURES}
            found[key]["tasks"] = statistics.fmean(tasks.get(key, {}).get("tasks", 0.0) for tasks in epochs)
            found[key]["longest"] = max(figures["longest"] for figures in own)
        return found

    def bytes_per_epoch(self) -> dict[str, float]:
        """Payload bytes of an epoch over the whole system by class: medians, so what is sent once is not in them."""
        epochs = [classes for _, classes in self.bytes_by_epoch()] or [numbers(self.summary.get("wire_bytes"))]
        names = dict.fromkeys((*SHOWN_BYTE_CLASSES, *(name for classes in epochs for name in classes)))
        present = [name for name in names if name != "per_epoch" and any(name in classes for classes in epochs)]
        return {name: statistics.median(classes.get(name, 0.0) for classes in epochs) for name in present}

    def bytes_sent_once(self) -> float:
        """How much more the first epoch sent than an epoch does: constant input, fetched once."""
        epochs = self.bytes_by_epoch()
        return sum(epochs[0][1].values()) - (self.total_bytes() or 0.0) if epochs else 0.0

    def total_bytes(self) -> float | None:
        """Payload bytes of an epoch over the whole system; None where they were not counted."""
        classes = self.bytes_per_epoch()
        return sum(classes.values()) if classes else None

    def phases(self) -> dict[str, float]:
        """Seconds of the phases of the median epoch, which add up to it; what no phase contains is "other".

        Of an even number of epochs the two in the middle are averaged, as the median is. Empty where phases were not
        recorded, or overlap. Evaluation comes on top of an epoch's seconds.
        """
        timed = sorted(
            ((seconds, numbers(record.get("phase_seconds"))) for record in self.records
             if (seconds := number(record.get("seconds"))) is not None),
            key=lambda pair: pair[0],
        )  # fmt: skip
        middle = timed[max(0, len(timed) - 1) // 2 : len(timed) // 2 + 1]
        names = dict.fromkeys(name for _, phases in middle for name in phases if name != "evaluate")
        if not names:
            return {}
        epoch = statistics.fmean(seconds for seconds, _ in middle)
        phases = {name: statistics.fmean(own.get(name, 0.0) for _, own in middle) for name in names}
        other = epoch - sum(phases.values())
        if abs(other) <= 1e-6 * epoch:
            return phases
        return phases | {"other": other} if other > 0 else {}

    def evaluation_seconds(self) -> float | None:
        """The median over the epochs that were evaluated."""
        taken = [numbers(record.get("phase_seconds")).get("evaluate") for record in self.records]
        known = [seconds for seconds in taken if seconds is not None]
        return statistics.median(known) if known else None

    def peak_memory(self) -> list[float]:
        values = self.summary.get("peak_rss_bytes")
        values = values if isinstance(values, list) else [values]
        return [value for value in map(number, values) if value is not None]

    def diverged_at(self) -> int | None:
        """The first epoch whose loss is no number."""
        return next((int(epoch) for epoch, loss in self.curve("train_loss") if loss is None), None)


def load_runs(paths: Sequence[Path | str]) -> list[RunData]:
    """The runs in these folders, under names that tell them apart."""
    if not paths:
        raise UserError("no run to report on: name at least one run folder")
    folders = [RunFolder.open(path) for path in paths]
    names = _names([folder.path.resolve() for folder in folders])
    return [_load(folder, name) for folder, name in zip(folders, names, strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path; where two share it, as many parts as tell them apart."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def _load(folder: RunFolder, name: str) -> RunData:
    problems: list[str] = []
    is_training = is_written(folder.path)  # before its files are read: it may end meanwhile

    def attempt(read: Any, otherwise: Any) -> Any:
        try:
            return read()
        except UserError as error:
            problems.append(str(error))
            return otherwise

    config = attempt(folder.config, {})
    records = attempt(folder.metrics, [])
    summary = attempt(folder.summary, None) or {}
    trace = None
    content = attempt(folder.trace, None)
    if content is not None:
        recording = attempt(lambda: parse_trace(content, folder.trace_file), None)
        trace = None if recording is None else one_epoch(recording["traceEvents"])
    return RunData(name, folder.path, config, records, summary, trace, problems, is_training)
