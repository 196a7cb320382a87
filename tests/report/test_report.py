"""The report: it holds what the runs hold, needs nothing from outside, and shows what is there of a broken run."""

import json
import math
import random
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.fake_runs import fake_events, fake_run
from weft.cli.show import dollars
from weft.errors import UserError
from weft.report.lines import MAX_POINTS, Line, line_plot, thin
from weft.report.page import write_report
from weft.report.rundata import load_runs
from weft.report.spans import one_epoch
from weft.report.text import format_bytes, format_number, format_percent, format_seconds, log_ticks, tick_texts, ticks
from weft.serverless.prices import price, read_prices
from weft.training.plain import flatten
from weft.training.runfolder import RunFolder

VOID = {"meta", "br", "path", "input", "img", "link"}


class Page(HTMLParser):
    """A page taken apart: its text, and every attribute; fails where tags do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(path.read_text())
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def lines(self) -> dict[str, list[Any]]:
        """All curves of the page: name -> points of the first curve of that name."""
        found: dict[str, list[Any]] = {}
        for _, name, value in self.attributes:
            if name == "data-plot":
                for line in json.loads(value):
                    found.setdefault(line["n"], line["p"])
        return found


def make_page(tmp_path: Path, *runs: Path) -> Page:
    return Page(write_report(list(runs), tmp_path / "out" / "report.html"))


def test_one_run_is_told_whole(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "arxiv")
    summary = run.summary()
    assert summary is not None
    page = make_page(tmp_path, run.path)
    assert "169,343 vertices" in page.text and "4 workers" in page.text
    assert format_percent(summary["test_accuracy"]).replace("\xa0", " ") in page.text
    for heading in ("Learning", "Time", "Traffic", "Memory and partition", "Settings", "Timeline of epoch"):
        assert heading in page.text
    assert "cut edges 8.3 % halo rows 10,021 to 13,456 vertex balance 1.020" in page.text
    assert "model.hidden 256" in page.text
    assert "Example 9000" in page.text


def test_curves_hold_the_recorded_values(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=12)
    points = make_page(tmp_path, run.path).lines()["validation"]
    recorded = [(r["epoch"], format_percent(r["val_accuracy"])) for r in run.metrics() if "val_accuracy" in r]
    assert [(epoch, text) for epoch, _, _, text in points] == recorded
    heights = [100 - top for _, _, top, _ in points]
    assert heights == sorted(heights)  # the fixture climbs, and so does the curve
    assert points[0][1] == 0 and points[-1][1] == 100


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path / "raw", seed=1),
        fake_run(tmp_path / "narrow", codec="adaptive", seed=2),
        fake_run(tmp_path / "alone", workers=1, seed=3),
    ]
    page = make_page(tmp_path, *(run.path for run in runs))
    assert "3 runs side by side" in page.text
    for setting in ("comm.codec", "workers", "seed"):
        assert re.search(rf"{re.escape(setting)} \S", page.text)
    assert "settings differ between the runs" in page.text and "settings are the same" in page.text
    assert "Bytes over the epochs, narrow" in page.text  # they change during that run, and in no other
    assert "Bytes over the epochs, raw" not in page.text
    assert page.text.count("timeline of epoch") == 3
    toggles = [value for _, name, value in page.attributes if name == "data-toggle"]
    assert toggles == ["0", "1", "2"]


def test_the_best_of_a_column_is_marked(tmp_path: Path) -> None:
    slow, fast = fake_run(tmp_path / "slow", workers=1), fake_run(tmp_path / "fast", workers=4)
    text = write_report([slow.path, fast.path], tmp_path / "r.html").read_text()
    rows = re.findall(r'<tr data-run="\d">.*?</tr>', text)
    best = [re.findall(r'<td class="n best">([^<]*)</td>', row) for row in rows]
    assert any(value.endswith("ms") for value in best[1]) and not any(value.endswith("ms") for value in best[0])


def test_the_page_needs_nothing_from_outside_and_is_small(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / str(seed), seed=seed, epochs=1500).path for seed in range(3)]
    file = write_report(paths, tmp_path / "report.html")
    text, page = file.read_text(), Page(file)
    assert file.stat().st_size < 1_000_000
    assert not [a for a in page.attributes if a[1] in ("src", "href", "xlink:href", "action", "srcset")]
    assert (
        "@import" not in text and "url(" not in text and "http" not in text and "//" not in _code_without_comments(text)
    )


def _code_without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.M)


HOSTILE = "<script>alert('x')</script>\"&<b onload=y>"


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run & <i>co", workers=2, epochs=4, model=HOSTILE, strategy=HOSTILE)
    summary = run.summary()
    assert summary is not None
    summary["graph"]["name"] = summary["machine"]["cpu"] = summary["partition"]["method"] = HOSTILE
    summary["status"] = HOSTILE
    summary["wire_bytes"][HOSTILE] = 1.0
    times = dict.fromkeys(("tasks", "median", "p95", "longest"), 1.0)
    hostile = {"phase_seconds": {HOSTILE: 0.1}, "tasks": {HOSTILE: {"functions": times}}, "functions": {HOSTILE: 1.0}}
    lines = [r | {"wire_bytes": {HOSTILE: 100 * r["epoch"]}} | hostile for r in run.metrics()]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = fake_events(2)
    for event in events:
        event["args"][HOSTILE] = HOSTILE
        if event["cat"] != "epoch":
            event["name"] = event["cat"] = HOSTILE
    run.trace_file.write_text(json.dumps({"traceEvents": events}))
    run.write_summary(summary)
    for paths in ([run.path], [run.path, fake_run(tmp_path / HOSTILE.replace("/", "|"), epochs=3).path]):
        file = write_report(paths, tmp_path / "report.html")
        page = Page(file)
        assert "<b onload" not in file.read_text() and "<script>alert" not in file.read_text()
        assert HOSTILE in page.text
        tags = {tag for tag, _, _ in page.attributes}
        assert "b" not in tags and not [a for a in page.attributes if a[1].startswith("on")]


def test_a_crashed_run_shows_what_it_recorded(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=9, summary=False, trace=False)
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 10, "sec')
    page = make_page(tmp_path, run.path)
    assert "There is no summary" in page.text and "up to epoch 9" in page.text
    assert "No trace was recorded" in page.text and "validation accuracy" in page.text
    assert "Peak memory of each worker" not in page.text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=0, summary=False, trace=False)
    page = make_page(tmp_path, run.path)
    assert "No epoch was recorded" in page.text and "Unfinished after 0 epochs" in page.text
    beside = make_page(tmp_path, run.path, fake_run(tmp_path / "done").path)
    assert "2 runs side by side" in beside.text


def test_one_epoch_is_a_point(tmp_path: Path) -> None:
    file = write_report([fake_run(tmp_path / "run", epochs=1, trace=False).path], tmp_path / "report.html")
    assert "One epoch makes no curve yet" in Page(file).text and 'class="dot c0"' in file.read_text()


def test_a_diverged_run_says_so(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=20, diverge_at=8)
    page = make_page(tmp_path, run.path)
    assert "not a number from epoch 8" in page.text


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_how_a_run_ended_is_said(tmp_path: Path, status: str) -> None:
    run = fake_run(tmp_path / "run", epochs=5)
    run.write_summary((run.summary() or {}) | {"status": status})
    assert f"The run was {status}" in make_page(tmp_path, run.path).text


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "trace.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", ["{", "[]", "null", '{"traceEvents": [3, {"ph": "X"}]}', '{"epoch": "one"}\n{}\n'])
def test_damaged_files_do_not_prevent_the_page(tmp_path: Path, name: str, content: str) -> None:
    run = fake_run(tmp_path / "run", epochs=5)
    (run.path / name).write_text(content)
    page = make_page(tmp_path, run.path)
    assert "run" in page.text
    if content == "{":
        assert "Settings" in page.text or name == "config.yaml"


@pytest.mark.parametrize("name", ["trace.json", "metrics.jsonl"])
def test_a_file_that_is_gone_since_the_run_ended_is_named(tmp_path: Path, name: str) -> None:
    run = fake_run(tmp_path / "run", epochs=5)
    assert "is missing" not in make_page(tmp_path, run.path).text
    (run.path / name).unlink()
    assert f"{name} is missing" in make_page(tmp_path, run.path).text


def test_a_summary_of_odd_values_does_not_prevent_the_page(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=5)
    odd = dict.fromkeys(run.summary() or {}, "odd") | {"peak_rss_bytes": [None, "x", 5], "best_epoch": None}
    run.write_summary(odd)
    assert "run" in make_page(tmp_path, run.path).text


def test_other_metrics_keep_their_names(tmp_path: Path) -> None:
    page = make_page(tmp_path, fake_run(tmp_path / "run", metric="roc_auc").path)
    assert "test ROC AUC 0.7" in page.text and "accuracy" not in page.text


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / parent / "run", epochs=2).path for parent in ("a", "b")]
    assert [run.name for run in load_runs(paths)] == ["a/run", "b/run"]
    assert [run.name for run in load_runs([paths[0], paths[0]])] == ["run", "run"]


def test_what_is_no_run_is_refused_and_nothing_written(tmp_path: Path) -> None:
    for runs in ([], [tmp_path], [tmp_path / "none"]):
        with pytest.raises(UserError):
            write_report(runs, tmp_path / "new" / "report.html")
    assert not (tmp_path / "new").exists()


# What is computed on the way


def span(name: str, kind: str, start: float, duration: float, worker: int = 0, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": kind, "ts": start, "dur": duration, "pid": worker, "tid": 0, "args": args}


def test_each_moment_of_an_epoch_is_counted_once_for_its_innermost_span() -> None:
    trace = one_epoch(
        [
            span("epoch", "epoch", 0, 100, epoch=1),
            span("forward", "compute", 0, 60),
            span("exchange", "wait", 10, 20),
            span("pack", "comm", 15, 5),
            span("odd", "astrology", 70, 10),
        ]
    )
    assert trace is not None and trace.epoch == 1
    assert trace.shares(0) == pytest.approx({"compute": 0.4, "wait": 0.15, "communicate": 0.05, "other": 0.4})
    assert {s.name: s.depth for s in trace.spans[0]} == {"forward": 0, "exchange": 1, "pack": 2, "odd": 0}


def test_the_chosen_epoch_is_the_middle_one_that_all_workers_have() -> None:
    lengths = {1: 900, 2: 100, 3: 120, 4: 500}
    events, start = [], 0.0
    for epoch, length in lengths.items():
        for worker in (0, 1):
            events.append(span("epoch", "epoch", start, length, worker, epoch=epoch))
            events.append(span("work", "compute", start + 5, 10, worker))
        start += length
    events.append(span("epoch", "epoch", start, 110, 0, epoch=5))  # worker 1 did not get that far
    trace = one_epoch(events)
    assert trace is not None and trace.epoch == 3 and trace.microseconds == 120
    assert [s.start for s in trace.spans[1]] == [5]


def test_a_trace_without_epochs_is_shown_whole_and_an_empty_one_not_at_all() -> None:
    trace = one_epoch([span("a", "compute", 10, 5), span("b", "wait", 20, 5, worker=1)])
    assert trace is not None and trace.epoch is None and trace.microseconds == 15
    assert one_epoch([{"ph": "M", "pid": 0}]) is None


def test_further_threads_lie_below() -> None:
    other = span("send", "communicate", 10, 50) | {"tid": 7}
    trace = one_epoch([span("epoch", "epoch", 0, 100, epoch=2), span("forward", "compute", 0, 100), other])
    assert trace is not None
    assert {s.name: s.depth for s in trace.spans[0]} == {"forward": 0, "send": 1}
    assert trace.shares(0) == {"compute": 1.0}


@pytest.mark.parametrize("epochs", [5, 6])
@pytest.mark.parametrize("measured", [("forward", "backward", "exchange_wait"), ("forward",)])
def test_an_epoch_and_its_parts_add_up(tmp_path: Path, epochs: int, measured: tuple[str, ...]) -> None:
    """The medians of the phases would not: which phase is slow differs from epoch to epoch."""
    run, chance = fake_run(tmp_path / "run", epochs=epochs, trace=False), random.Random(0)
    records = []
    for record in run.metrics():
        phases = {name: chance.uniform(0.01, 2.0) for name in ("forward", "backward", "exchange_wait")}
        kept = {name: phases[name] for name in measured}
        records.append(record | {"seconds": sum(phases.values()), "phase_seconds": kept | {"evaluate": 5.0}})
    write_records(run, records)
    data = load_runs([run.path])[0]
    parts = data.phases()
    assert sum(parts.values()) == pytest.approx(statistics.median(record["seconds"] for record in records))
    assert set(parts) == {*measured, *(() if len(measured) == 3 else ("other",))}
    page = make_page(tmp_path, run.path)
    shown = re.search(r"What an epoch is made of (.*?) The median epoch", page.text)
    assert shown is not None and "Evaluation takes its own time after it: 5 s" in page.text
    seconds = [float(value) / (1000 if unit == "ms" else 1) for value, unit in re.findall(r"([\d.]+) (s|ms)", shown[1])]
    assert len(seconds) == len(parts) and sum(seconds) == pytest.approx(data.epoch_seconds() or 0.0, rel=0.01)


def test_phases_that_overlap_are_no_parts(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=3)
    write_records(run, [r | {"seconds": 1.0, "phase_seconds": {"forward": 0.6, "wait": 0.5}} for r in run.metrics()])
    assert load_runs([run.path])[0].phases() == {}
    assert "What an epoch is made of" not in make_page(tmp_path, run.path).text


def write_records(run: RunFolder, records: list[dict[str, Any]]) -> None:
    """Puts other records into a run's folder, and a summary that agrees with them."""
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    seconds = [record["seconds"] for record in records]
    median = {"median": statistics.median(seconds), "total": sum(seconds)}
    run.write_summary((run.summary() or {}) | {"epoch_seconds": median})  # which names the file's digest


def test_settings_are_dotted_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1, 2], "e": None}) == {
        "a.b": "1",
        "a.c": "{}",
        "d": "[1, 2]",
        "e": "none",
    }


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.1234, 0.1239), (-5, 12), (0, 3e-7), (1e6, 9e6), (5, 5), (0, 0), (-3, -3)]
)
def test_ticks_are_few_and_cover(low: float, high: float) -> None:
    for base in (10, 1024):
        marks = ticks(low, high, base=base)
        assert marks[0] <= low + 1e-12 and marks[-1] >= high - 1e-12 and 2 <= len(marks) <= 9


@pytest.mark.parametrize(("low", "high"), [(0.01, 3.0), (1, 31), (1e-8, 1e8), (0.9, 100)])
def test_log_ticks_cover(low: float, high: float) -> None:
    marks = log_ticks(low, high)
    assert marks == sorted(marks) and marks[0] <= low and marks[-1] >= high


def test_labels_of_an_axis_have_the_same_decimals() -> None:
    assert tick_texts([0, 0.5, 1], format_number) == ["0.0", "0.5", "1.0"]
    assert tick_texts([0.725, 0.75], format_percent) == ["72.5\xa0%", "75.0\xa0%"]


def test_thinning_keeps_ends_and_extremes() -> None:
    points: list[tuple[float, float | None]] = [(float(x), math.sin(x / 50)) for x in range(10_000)]
    points[4321], points[5000] = (4321.0, 9.0), (5000.0, None)
    thinned = thin(points)
    assert len(thinned) <= MAX_POINTS + 82  # four per stretch at most
    assert thinned[0] == points[0] and thinned[-1] == points[-1] and (4321.0, 9.0) in thinned


def test_gaps_interrupt_a_curve() -> None:
    plot = line_plot(
        [Line("loss", [(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, math.nan), (6, 3.0), (7, 1.0)])], "Loss"
    )
    assert len(re.findall(r'class="line', plot)) == 2 and len(re.findall(r'class="dot', plot)) == 1
    assert "Nothing was recorded" in line_plot([Line("loss", [(1, None)])], "Loss")


def test_numbers_are_readable() -> None:
    texts = [format_number(v) for v in (0, 1, 0.78049, 12345.6, 1e-7, math.inf)]
    assert texts == ["0", "1", "0.7805", "12,346", "1.00e-07", "not a number"]
    plain = [format_bytes(v).replace("\xa0", " ") for v in (0, 999, 1000, 2**20, 1023 * 2**20, 3.5 * 2**40)]
    assert plain == ["0 B", "999 B", "0.977 KiB", "1 MiB", "0.999 GiB", "3.5 TiB"]
    plain = [format_seconds(v).replace("\xa0", " ") for v in (0, 2e-6, 0.0123, 1.5, 119, 754, 7322)]
    assert plain == ["0 s", "2 µs", "12.3 ms", "1.5 s", "119 s", "12 min 34 s", "2 h 02 min"]


def test_a_curve_under_an_equal_one_stays_visible() -> None:
    points = [(float(x), 1.0 / x) for x in range(1, 9)]
    other = [(x, y + 0.3) for x, y in points]
    plot = line_plot([Line("a", points), Line("b", other, "c1"), Line("c", points, "c2")], "Loss")
    assert re.findall(r'class="line (c\d)( under)?"', plot) == [("c0", " under"), ("c1", ""), ("c2", "")]


def test_bytes_of_an_epoch_leave_out_what_is_sent_once(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", epochs=5)
    records = run.metrics()
    records[0]["wire_bytes"]["features"] = 5 * 2**20
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    run.write_summary(run.summary() or {})  # which names the file's digest
    data = load_runs([run.path])[0]
    assert data.bytes_per_epoch()["features"] == 0
    assert data.total_bytes() == sum(records[1]["wire_bytes"].values())
    page = make_page(tmp_path, run.path)
    assert "The first epoch sent 5 MiB more" in page.text and "Bytes over the epochs" not in page.text


def test_a_slow_first_epoch_is_cut_off_but_a_slow_run_is_not(tmp_path: Path) -> None:
    quick, slow = fake_run(tmp_path / "quick"), fake_run(tmp_path / "slow", seed=1)
    assert "the slowest epoch took" in make_page(tmp_path, quick.path).text
    records = [record | {"seconds": 9 + record["epoch"] / 100} for record in slow.metrics()]
    slow.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    slow.write_summary(slow.summary() or {})
    assert "the slowest epoch took" not in make_page(tmp_path, quick.path, slow.path).text


USED = {"function_seconds": 3600.0, "requests": 1e6, "init_seconds": 10.0, "wasted_seconds": 36.0}


def test_what_a_run_cost(tmp_path: Path) -> None:
    cost = price(read_prices(), 7200.0, servers=3, functions=USED, weight_servers=1).to_dict()
    priced = fake_run(tmp_path / "priced", epochs=5, trace=False, more={"cost": cost})
    alone, both = (make_page(tmp_path, priced.path, *more) for more in ((), (fake_run(tmp_path / "free").path,)))
    for page in (alone, both):
        assert dollars(5 * cost["total"]) in page.text and dollars(cost["total"]) in page.text
        assert dollars(5 * cost["graph_servers"]) in page.text
    shown = re.search(r"What all epochs cost (.*?) Value, 1 / \(time x cost\)", alone.text)
    assert shown is not None
    parts = [float(amount.replace(",", "")) for amount in re.findall(r"\$([\d.,]+)", shown[1])]
    assert len(parts) == 6 and sum(parts) == pytest.approx(5 * cost["total"], abs=0.03), "the parts add up"
    assert "Cost" not in make_page(tmp_path, tmp_path / "free").text


TASKS = {
    "apply_vertex": {
        "functions": {"tasks": 48, "median": 0.0021, "p95": 0.0094, "longest": 0.031},
        "servers": {"tasks": 16, "median": 0.0005, "p95": 0.0006, "longest": 0.0007},
    },
    "apply_vertex_back": {"functions": {"tasks": 32, "median": 0.004, "p95": 0.02, "longest": 0.05}},
}
FUNCTIONS = {"tasks": 80, "attempts": 83, "workers": 4, "lost": 0, "task_seconds": 0.31, "bytes_out": 3 * 2**20}


def test_tasks_and_latencies_of_functions(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "away", epochs=4, trace=False, more={"tasks": TASKS, "functions": FUNCTIONS})
    text = make_page(tmp_path, run.path).text.replace("\xa0", " ")
    assert "An epoch has 96 tensor tasks: in the mean 80 in functions and 16 on the graph servers themselves." in text
    assert "tensor tasks 96 per epoch, 80 in functions" in text and "latency of a task 2.1 ms to 4 ms" in text
    assert "vertex products, forward 48 2.1 ms 9.4 ms 31 ms" in text
    assert "vertex products, forward, on the servers 16 500 µs 600 µs 700 µs" in text
    assert "vertex products, backward 32 4 ms 20 ms 50 ms" in text
    assert "attempts at tasks 83" in text and "sent to functions 3 MiB" in text
    assert "attempts that were lost" not in text, "what did not happen takes no line"
    assert make_page(tmp_path, run.path).lines()["vertex products, forward, 95 %"][0][3] == "9.4\xa0ms"
    both = make_page(tmp_path, run.path, fake_run(tmp_path / "here", epochs=4).path).text
    assert "An epoch of away has 96 tensor tasks" in both and "Tensor tasks of an epoch, away" in both
    assert "Functions" not in make_page(tmp_path, tmp_path / "here").text
