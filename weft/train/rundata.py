"""What a report says about a run, read from its folder, whatever of it is there."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.errors import UserError
from weft.train.runfolder import Record, RunFolder
from weft.train.trace import read_trace

BYTE_CLASSES = ("features", "hidden_forward", "hidden_backward", "gradients", "ids", "topology", "control")
CATEGORIES = ("compute", "wait", "communicate", "io", "other")
_ALIASES = {"comm": "communicate", "exchange": "communicate", "send": "communicate", "waiting": "wait"}


def number(value: object) -> float | None:
    """A finite number, or None for anything else: files may hold null, text or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


@dataclass(frozen=True)
class SpanTime:
    """A span of the chosen epoch, in microseconds from its start, nested `depth` deep."""

    name: str
    category: str
    start: float
    duration: float
    depth: int
    args: Mapping[str, Any]


@dataclass(frozen=True)
class EpochTrace:
    """One epoch as the workers' traces saw it."""

    epoch: int | None  # None: the trace has no epochs, this is all of it
    microseconds: float
    spans: dict[int, list[SpanTime]]  # by worker
    activity: dict[int, list[SpanTime]]  # by worker: without gaps or overlaps, what it did at each moment

    def shares(self, worker: int) -> dict[str, float]:
        """Which fraction of its epoch the worker spent on each category."""
        spent = dict.fromkeys(CATEGORIES, 0.0)
        for stretch in self.activity[worker]:
            spent[stretch.category] += stretch.duration
        total = sum(spent.values())
        return {category: value / total for category, value in spent.items() if value > 0}


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

    @property
    def status(self) -> str:
        status = self.summary.get("status")
        return str(status) if status else ("finished" if self.summary else "unfinished")

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
        values = [(value, -epoch) for epoch, value in self.curve(f"val_{self.metric}") if value is not None]
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
        value = number(_mapping(self.summary.get("epoch_seconds")).get(which))
        seconds = [s for _, s in self.curve("seconds") if s is not None]
        if value is not None or not seconds:
            return value
        return statistics.median(seconds) if which == "median" else sum(seconds)

    def bytes_by_epoch(self) -> list[tuple[int, dict[str, float]]]:
        return [(r["epoch"], _numbers(r["wire_bytes"])) for r in self.records if "wire_bytes" in r]

    def widths(self) -> list[tuple[int, dict[tuple[str, str], dict[str, float]]]]:
        """(epoch, rows by bits for each layer and direction), whenever widths of rows were chosen."""
        return [
            (
                record["epoch"],
                {
                    (layer, direction): _numbers(counts)
                    for layer, directions in sorted(_mapping(record["widths"]).items())
                    for direction, counts in sorted(_mapping(directions).items(), reverse=True)
                },
            )
            for record in self.records
            if "widths" in record
        ]

    def cost(self) -> dict[str, float]:
        """Dollars of an epoch by what they were paid for: medians; empty where nothing was priced."""
        epochs = [_numbers(record["cost"]) for record in self.records if "cost" in record]
        names = dict.fromkeys(name for costs in epochs for name in costs)
        return {name: statistics.median(costs.get(name, 0.0) for costs in epochs) for name in names}

    def bytes_per_epoch(self) -> dict[str, float]:
        """Payload bytes of an epoch over the whole system by class: medians, so what is sent once is not in them."""
        epochs = [classes for _, classes in self.bytes_by_epoch()] or [_numbers(self.summary.get("wire_bytes"))]
        names = dict.fromkeys((*BYTE_CLASSES, *(name for classes in epochs for name in classes)))
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
        """Median seconds of each phase of an epoch, and the rest of the epoch as "other".

        Waiting happens within forward and backward. Where their times include it (the phases then exceed the epoch),
        it is taken out of them. Evaluation comes on top of an epoch's seconds.
        """
        phases = _numbers(self.summary.get("phase_seconds"))
        if not phases:
            seen: dict[str, list[float]] = defaultdict(list)
            for record in self.records:
                for name, value in _numbers(record.get("phase_seconds")).items():
                    seen[name].append(value)
            phases = {name: statistics.median(values) for name, values in seen.items()}
        epoch = self.epoch_seconds()
        if not phases or epoch is None:
            return phases
        known = sum(value for name, value in phases.items() if name != "evaluate")
        passes = sum(phases.get(name, 0.0) for name in ("forward", "backward"))
        wait = phases.get("exchange_wait", 0.0)
        if known > 1.02 * epoch and passes > wait:
            for name in ("forward", "backward"):
                phases[name] = phases.get(name, 0.0) * (1 - wait / passes)
            known -= wait
        rest = epoch - known
        return phases | {"other": rest} if rest > 0.01 * epoch else phases

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
    if folder.trace_file.exists():
        recording = attempt(lambda: read_trace(folder.trace_file), None)
        trace = None if recording is None else one_epoch(recording["traceEvents"])
    return RunData(name, folder.path, config, records, summary, trace, problems)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as dotted keys and text, as --set takes them."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = "none" if value is None else str(value)
    return flat


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _numbers(value: object) -> dict[str, float]:
    pairs = ((str(key), number(item)) for key, item in _mapping(value).items())
    return {key: item for key, item in pairs if item is not None}


# One epoch out of a trace


@dataclass(frozen=True)
class _Bounds:
    """When one worker's epoch began and ended, and on which thread."""

    start: float
    end: float
    thread: object


def one_epoch(events: Iterable[Any]) -> EpochTrace | None:
    """The epoch of median length among those that every worker recorded, without the first, which warms up."""
    spans = [event for event in events if _is_span(event)]
    if not spans:
        return None
    by_worker: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    epochs: dict[int, dict[int, _Bounds]] = defaultdict(dict)  # epoch -> worker -> when
    for event in spans:
        epoch = _mapping(event.get("args")).get("epoch")
        if event.get("cat") == "epoch" and isinstance(epoch, int):
            epochs[epoch][event["pid"]] = _Bounds(event["ts"], event["ts"] + event["dur"], event.get("tid"))
        by_worker[event["pid"]].append(event)
    whole = sorted(epoch for epoch, seen in epochs.items() if set(seen) == set(by_worker))
    if not whole:
        start, end = min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)
        everything = {worker: _Bounds(start, end, own[0].get("tid")) for worker, own in by_worker.items()}
        return _epoch_trace(None, by_worker, everything)
    candidates = sorted(whole[1:] or whole, key=lambda epoch: _length(epochs[epoch].values()))
    chosen = candidates[len(candidates) // 2]
    return _epoch_trace(chosen, by_worker, epochs[chosen])


def _is_span(event: Any) -> bool:
    return (
        isinstance(event, Mapping)
        and event.get("ph") == "X"
        and isinstance(event.get("pid"), int)
        and number(event.get("ts")) is not None
        and number(event.get("dur")) is not None
    )


def _length(bounds: Iterable[_Bounds]) -> float:
    bounds = list(bounds)
    return max(b.end for b in bounds) - min(b.start for b in bounds)


def _epoch_trace(
    epoch: int | None, by_worker: Mapping[int, Sequence[Mapping[str, Any]]], bounds: Mapping[int, _Bounds]
) -> EpochTrace:
    origin = min(b.start for b in bounds.values())
    spans: dict[int, list[SpanTime]] = {}
    activity: dict[int, list[SpanTime]] = {}
    for worker, when in sorted(bounds.items()):
        threads: dict[object, list[Mapping[str, Any]]] = {when.thread: []}  # its lanes are the upper ones
        for event in by_worker[worker]:
            inside = event["ts"] < when.end and event["ts"] + event["dur"] > when.start
            if inside and event.get("cat") != "epoch":
                threads.setdefault(event.get("tid"), []).append(event)
        nested = {thread: _nest(own, when.start, when.end) for thread, own in threads.items()}
        stretches = _activity(nested[when.thread], when.start, when.end)
        activity[worker] = [replace(s, start=s.start - origin) for s in stretches]
        spans[worker] = []
        for own in nested.values():
            below = 1 + max((span.depth for span in spans[worker]), default=-1)
            spans[worker] += [replace(s, start=s.start - origin, depth=s.depth + below) for s in own]
    return EpochTrace(epoch, _length(bounds.values()), spans, activity)


def _nest(events: Sequence[Mapping[str, Any]], start: float, end: float) -> list[SpanTime]:
    """One thread's spans cut to [start, end], each one level below the span that encloses it."""
    open_ends: list[float] = []
    nested = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, stop = max(event["ts"], start), min(event["ts"] + event["dur"], end)
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        category = str(event.get("cat", "other"))
        category = _ALIASES.get(category, category)
        name, args = str(event.get("name", "")), _mapping(event.get("args"))
        nested.append(SpanTime(name, category, begin, stop - begin, len(open_ends), args))
        open_ends.append(stop)
    return nested


def _activity(spans: Sequence[SpanTime], start: float, end: float) -> list[SpanTime]:
    """What a thread did at each moment: the category of the innermost span that covers it."""
    cuts = sorted({start, end, *(s.start for s in spans), *(s.start + s.duration for s in spans)})
    index = {cut: position for position, cut in enumerate(cuts)}
    owner = ["other"] * (len(cuts) - 1)
    for span in sorted(spans, key=lambda s: s.depth):
        category = span.category if span.category in CATEGORIES else "other"
        for position in range(index[span.start], index[span.start + span.duration]):
            owner[position] = category
    stretches: list[SpanTime] = []
    for category, (a, b) in zip(owner, itertools.pairwise(cuts), strict=True):
        if stretches and stretches[-1].category == category:
            stretches[-1] = replace(stretches[-1], duration=b - stretches[-1].start)
        else:
            stretches.append(SpanTime(category, category, a, b - a, 0, {}))
    return stretches
