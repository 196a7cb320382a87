"""Traces: what is recorded, what it costs, and how workers come together."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from weft.errors import UserError
from weft.training.trace import Trace, merge, merge_files, read_trace


def spans(recording: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in recording["traceEvents"] if event["ph"] == "X"]


def test_spans_nest_and_carry_their_arguments() -> None:
    trace = Trace(worker=3)
    with trace.span("epoch", "epoch", epoch=1), trace.span("wait", "wait", peer=2):
        time.sleep(0.002)
    inner, outer = spans(trace.to_json())
    assert (inner["name"], inner["cat"], inner["pid"]) == ("wait", "wait", 3)
    assert inner["args"] == {"peer": 2} and outer["args"] == {"epoch": 1}
    assert inner["dur"] >= 2000  # microseconds
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_a_span_is_recorded_when_its_work_fails() -> None:
    trace = Trace()
    with pytest.raises(RuntimeError), trace.span("forward"):
        raise RuntimeError
    assert len(trace) == 1


def test_off_records_nothing_and_costs_about_a_microsecond() -> None:
    trace = Trace(enabled=False)
    best = min(_seconds_of_spans(trace) for _ in range(5))
    assert len(trace) == 0
    assert best / 10_000 < 5e-6  # some 0.3 us; the bar leaves room for a busy machine


def _seconds_of_spans(trace: Trace) -> float:
    start = time.perf_counter()
    for _ in range(10_000):
        with trace.span("x", "compute", layer=1):
            pass
    return time.perf_counter() - start


def test_events_are_bounded_and_the_rest_counted() -> None:
    trace = Trace(limit=10)
    for _ in range(25):
        with trace.span("x"):
            pass
    assert len(trace) == 10 and trace.to_json()["otherData"]["dropped"] == 15
    trace.clear()
    assert len(trace) == 0 and trace.dropped == 0


def test_switching_off_and_on() -> None:
    trace = Trace()
    trace.enabled = False
    with trace.span("unseen"):
        pass
    trace.enabled = True
    with trace.span("seen"):
        pass
    assert [event["name"] for event in spans(trace.to_json())] == ["seen"]


def test_threads_have_their_own_rows() -> None:
    trace = Trace()

    def work() -> None:
        with trace.span("send", "communicate"):
            pass

    thread = threading.Thread(target=work, name="sender")
    with trace.span("forward"):
        thread.start()
        thread.join()
    recording = trace.to_json()
    assert len({event["tid"] for event in spans(recording)}) == 2
    names = [e["args"]["name"] for e in recording["traceEvents"] if e["name"] == "thread_name"]
    assert "sender" in names


def test_merge_puts_workers_on_one_time_axis() -> None:
    first, second = Trace(worker=0), Trace(worker=1)
    for trace in (first, second):
        with trace.span("epoch", "epoch", epoch=1):
            pass
    late = second.to_json()
    late["otherData"]["origin_unix_ns"] = first.to_json()["otherData"]["origin_unix_ns"] + 5_000_000
    merged = merge([first.to_json(), late])
    a, b = spans(merged)
    assert (a["pid"], b["pid"]) == (0, 1)
    assert min(a["ts"], b["ts"]) == 0.0
    own_gap = spans(late)[0]["ts"] - spans(first.to_json())[0]["ts"]
    assert b["ts"] - a["ts"] == pytest.approx(5000 + own_gap, abs=0.01)


def test_merge_of_files_leaves_one(tmp_path: Path) -> None:
    paths = []
    for worker in range(3):
        trace = Trace(worker, limit=1)
        for _ in range(2):
            with trace.span("x", "compute", where=Path("a")):  # an argument that JSON does not know becomes text
                pass
        paths.append(tmp_path / f"trace-{worker}.json")
        trace.write(paths[-1])
    merge_files(paths, tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    merged = read_trace(tmp_path / "trace.json")
    assert {event["pid"] for event in spans(merged)} == {0, 1, 2} and merged["otherData"]["dropped"] == 3


def test_empty_recordings_merge() -> None:
    assert spans(merge([Trace(0).to_json(), Trace(1).to_json()])) == []
    assert merge([])["traceEvents"] == []


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"traceEvents": 3})])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"trace\.json"):
        read_trace(file)
    with pytest.raises(UserError, match="does not exist"):
        read_trace(tmp_path / "none.json")
