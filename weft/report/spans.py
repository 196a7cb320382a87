"""One epoch out of the workers' traces: what each of them did at each moment."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.report.values import mapping, number

CATEGORIES = ("compute", "wait", "communicate", "io", "other")

_ALIASES = {"comm": "communicate", "exchange": "communicate", "send": "communicate", "waiting": "wait"}


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
        epoch = mapping(event.get("args")).get("epoch")
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
        name, args = str(event.get("name", "")), mapping(event.get("args"))
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
