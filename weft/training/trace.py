"""Timelines of a run: spans in the format that Chrome and Perfetto show.

Each worker keeps one `Trace`; what it recorded is written with its worker number as the process, and `merge`
lays several workers' recordings on one time axis. By convention a span of category "epoch" with the argument
`epoch` encloses each epoch, and the spans inside say "compute", "wait" (blocked on another worker),
"communicate" (packing, sending) or "io".
"""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from weft.disk import open_file, parse_json
from weft.disk.atomic import write_atomically
from weft.errors import UserError

Clock = time.perf_counter_ns


class Span(Protocol):
    """What `Trace.span` gives: a context manager around the work."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NoSpan:
    """The span of a trace that is off; one for all, so that it costs next to nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        return None


_NO_SPAN = _NoSpan()


class _OpenSpan:
    __slots__ = ("args", "category", "name", "start", "trace")

    def __init__(self, trace: "Trace", name: str, category: str, args: dict[str, Any]) -> None:
        self.trace, self.name, self.category, self.args = trace, name, category, args
        self.start = Clock()

    def __enter__(self) -> None:
        self.start = Clock()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self.trace.record(self.name, self.category, self.start, Clock(), self.args)


class Trace:
    """The spans of one worker. `enabled` may be switched at any time, for instance to record few epochs only.

    At most `limit` spans are kept, the first ones; later ones are counted as dropped, so that a long run
    cannot fill the memory.
    """

    def __init__(self, worker: int = 0, enabled: bool = True, limit: int = 100_000) -> None:
        self.worker, self.enabled, self.limit = worker, enabled, limit
        self.dropped = 0
        # Workers on several hosts share no monotonic clock; the wall clock at one moment ties them together.
        self._origin_unix_ns, self._origin = time.time_ns(), Clock()
        self._events: list[tuple[str, str, int, int, int, dict[str, Any]]] = []
        self._threads: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._events)

    def span(self, name: str, category: str = "compute", **args: Any) -> Span:
        """Records how long the `with` block takes; nothing at all while the trace is off."""
        if not self.enabled:
            return _NO_SPAN
        return _OpenSpan(self, name, category, args)

    def record(self, name: str, category: str, start: int, end: int, args: dict[str, Any] | None = None) -> None:
        """Adds a span whose start and end (of `time.perf_counter_ns`) were measured elsewhere."""
        if not self.enabled:
            return
        if len(self._events) >= self.limit:
            self.dropped += 1
            return
        thread = threading.get_ident()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self._events.append((name, category, start, end, thread, args or {}))

    def clear(self) -> None:
        self._events.clear()
        self.dropped = 0

    def to_json(self) -> dict[str, Any]:
        """The recording as a Chrome trace; microseconds since `otherData.origin_unix_ns`."""
        pid, numbers = self.worker, {thread: number for number, thread in enumerate(self._threads)}
        events: list[dict[str, Any]] = [
            _metadata("process_name", pid, 0, name=f"worker {pid}"),
            _metadata("process_sort_index", pid, 0, sort_index=pid),
        ]
        events += [_metadata("thread_name", pid, numbers[t], name=name) for t, name in self._threads.items()]
        for name, category, start, end, thread, args in self._events:
            event = {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": (start - self._origin) / 1e3,
                "dur": (end - start) / 1e3,
                "pid": pid,
                "tid": numbers[thread],
            }
            events.append(event | {"args": args} if args else event)
        other = {"origin_unix_ns": self._origin_unix_ns, "dropped": self.dropped}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}

    def to_bytes(self) -> bytes:
        """The recording as UTF-8 JSON, to be written or sent to worker 0."""
        return json.dumps(self.to_json(), separators=(",", ":"), default=str).encode()

    def write(self, path: Path) -> None:
        write_atomically(path, self.to_bytes())


def merge(recordings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several workers' recordings as one, on a common time axis that starts at 0 with the earliest span."""
    events: list[dict[str, Any]] = []
    dropped = 0
    recordings = list(recordings)
    origins = [int(r.get("otherData", {}).get("origin_unix_ns", 0)) for r in recordings]
    base = min(origins, default=0)
    for recording, origin in zip(recordings, origins, strict=True):
        shift = (origin - base) / 1e3
        dropped += int(recording.get("otherData", {}).get("dropped", 0))
        for event in recording["traceEvents"]:
            events.append(event | {"ts": event["ts"] + shift} if "ts" in event else event)
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - first, 3)
            event["dur"] = round(event.get("dur", 0.0), 3)
    origin = base + int(first * 1e3)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"origin_unix_ns": origin, "dropped": dropped},
    }


def merge_files(paths: Sequence[Path], out: Path) -> None:
    """Merges workers' files into one and removes them."""
    merged = merge([read_trace(path) for path in paths])
    write_atomically(out, json.dumps(merged, separators=(",", ":")).encode())
    for path in paths:
        if path != out:
            path.unlink()


def read_trace(path: Path) -> dict[str, Any]:
    """A recording from a file, checked for being one."""
    if not path.exists():
        raise UserError(f"{path} does not exist: train with tracing on to get a trace")
    with open_file(path, "remove it or train again") as file:
        return parse_trace(file.read(), path)


def parse_trace(content: bytes, path: Path) -> dict[str, Any]:
    recording = parse_json(content, str(path), "remove it or train again")
    if not isinstance(recording, dict) or not isinstance(recording.get("traceEvents"), list):
        raise UserError(f"{path} is no Chrome trace: it has no traceEvents")
    return recording


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
