"""The section of a report about functions: the tensor tasks of an epoch, how long they took, and what functions did."""

from collections.abc import Mapping, Sequence

from weft.report.figure import figure
from weft.report.lines import Line, line_plot
from weft.report.rundata import RunData, TaskTimes
from weft.report.style import NOTHING, color, in_grid, section, table_by_run, tag
from weft.report.text import Format, escape, format_bytes, format_number, format_seconds

FUNCTIONS, SERVERS = "functions", "servers"  # where tasks ran, in a run's records

_KINDS = {
    "apply_vertex": "vertex products, forward",
    "apply_edge": "edge functions, forward",
    "apply_vertex_back": "vertex products, backward",
    "apply_edge_back": "edge functions, backward",
}
_USAGE: dict[str, tuple[str, Format]] = {  # by name in the records: what it is called, and how it is written
    "workers": ("workers at the end of the epoch", format_number),
    "task_seconds": ("time of computation, all workers together", format_seconds),
    "function_seconds": ("billed time", format_seconds),
    "bytes_out": ("sent to functions", format_bytes),
    "bytes_in": ("received from functions", format_bytes),
    "attempts": ("attempts at tasks", format_number),
    "retries": ("tasks tried again", format_number),
    "hedges": ("second attempts at slow tasks (hedges)", format_number),
    "lost": ("attempts that were lost", format_number),
    "throttled": ("attempts that the cloud put off", format_number),
    "refused": ("messages that were refused", format_number),
    "requests": ("billed requests", format_number),
}


def functions(runs: Sequence[RunData]) -> str:
    """What runs did whose products are computed elsewhere."""
    pipelined = [(i, run) for i, run in enumerate(runs) if run.function_usage()]
    if not pipelined:
        return ""
    tables = [_task_table(run, runs) for _, run in pipelined if run.tasks()]
    plots = [_latency_plot(i, run, runs) for i, run in pipelined if _latencies(run)]
    used = {i: run.function_usage() for i, run in pipelined}
    lead = " ".join(_tasks_text(run, runs) for _, run in pipelined if run.tasks())
    return section(
        "Functions",
        lead or "What functions did in an epoch.",
        in_grid(*tables),
        in_grid(*plots, figure("What functions did in an epoch", _usage_table(used, runs), note="Medians.")),
    )


def tasks_of(tasks: TaskTimes, place: str) -> float:
    """The number of an epoch's tasks that ran there."""
    return sum(figures["tasks"] for (_, where), figures in tasks.items() if where == place)


def count_text(mean: float) -> str:
    """A number of tasks in the mean over epochs, to a tenth."""
    return format_number(mean) if mean == int(mean) else f"{mean:,.1f}"


def _tasks_text(run: RunData, runs: Sequence[RunData]) -> str:
    tasks = run.tasks()
    away, here = tasks_of(tasks, FUNCTIONS), tasks_of(tasks, SERVERS)
    whose = f"An epoch of {run.name} has" if len(runs) > 1 else "An epoch has"
    if not here:
        return f"{whose} {count_text(away)} tensor tasks, all of them in functions."
    where = f"in the mean {count_text(away)} in functions and {count_text(here)} on the graph servers themselves"
    return f"{whose} {count_text(away + here)} tensor tasks: {where}."


def _task_table(run: RunData, runs: Sequence[RunData]) -> str:
    heads = ("tasks", "median", "95 % take at most", "longest of all")
    rows = []
    for (kind, place), figures in run.tasks().items():
        name = _KINDS.get(kind, kind.replace("_", " ")) + ("" if place == FUNCTIONS else ", on the servers")
        times = [format_seconds(figures[key]) for key in ("median", "p95", "longest")]
        cells = "".join(f'<td class="n">{escape(text)}</td>' for text in (count_text(figures["tasks"]), *times))
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    head = "".join(f'<th class="n">{text}</th>' for text in heads)
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    title = "Tensor tasks of an epoch" + (f", {run.name}" if len(runs) > 1 else "")
    note = (
        "From the moment a task is sent until its result is here: travel, waiting at the function, and computation. "
        "Of tasks on the servers, computation. Medians over the epochs."
    )
    return figure(title, f'<div class="scroll">{table}</div>', note=note)


def _latencies(run: RunData) -> dict[str, list[tuple[int, Mapping[str, float]]]]:
    """By kind, (epoch, number and seconds) of the tasks in functions."""
    found: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    for epoch, tasks in run.tasks_by_epoch():
        for (kind, place), figures in tasks.items():
            if place == FUNCTIONS:
                found.setdefault(kind, []).append((epoch, figures))
    return found


def _latency_plot(index: int, run: RunData, runs: Sequence[RunData]) -> str:
    lines = []
    for number, (kind, epochs) in enumerate(_latencies(run).items()):
        name = _KINDS.get(kind, kind.replace("_", " "))
        for key, dashed in (("median", False), ("p95", True)):
            points = [(float(epoch), figures[key]) for epoch, figures in epochs]
            label = name if not dashed else f"{name}, 95 %"
            lines.append(Line(label, points, color(number), dashed, tag(index, runs), key=None if not dashed else ""))
    title = "Latency of tasks in functions" + (f", {run.name}" if len(runs) > 1 else "")
    aside = "solid: median; dotted: 95 % take at most"
    return line_plot(lines, title, format_seconds, from_zero=True, allow_log=True, aside=aside)


def _usage_table(used: Mapping[int, Mapping[str, float]], runs: Sequence[RunData]) -> str:
    rows = {
        name: {i: formatter(own[key]) if key in own else NOTHING for i, own in used.items()}
        for key, (name, formatter) in _USAGE.items()
        if any(own.get(key) for own in used.values())
    }
    return table_by_run(rows, runs)
