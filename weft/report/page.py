"""The page of a report: its header, its sections one after another, its footer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from weft.cli.show import dollars
from weft.disk.atomic import write_atomically
from weft.report.functions import FUNCTIONS, count_text, functions, tasks_of
from weft.report.learning import learning
from weft.report.resources import cost, memory_and_partition
from weft.report.rundata import RunData, load_runs
from weft.report.settings import settings
from weft.report.style import NOTHING, color, metric_text, words
from weft.report.text import escape, format_bytes, format_number, format_seconds
from weft.report.timing import time
from weft.report.traffic import traffic
from weft.report.values import number
from weft.training.metrics import lower_is_better


def write_report(runs: Sequence[Path | str], out: Path | str) -> Path:
    """Writes the page about these run folders and gives its path."""
    data = load_runs(runs)
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(data))
    return path


def page(runs: Sequence[RunData], script: str = "") -> str:
    """The whole page as text. `script` runs in it besides its own."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side"
    about_training = [learning(runs), time(runs), functions(runs), traffic(runs)]
    sections = [*about_training, memory_and_partition(runs), cost(runs), settings(runs)]
    return document(title, f"{header(runs, title)}{''.join(sections)}{footer(runs)}", script)


def document(title: str, main: str, script: str = "") -> str:
    """A page with this content, and all that it needs in itself."""
    here = Path(__file__)
    own = here.with_suffix(".js").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · weft</title><style>{here.with_suffix('.css').read_text()}</style></head>"
        f'<body><main>{main}</main><div id="tip" role="status" hidden></div><script>{own}</script>'
        f"{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


# The top: what ran, and the figures one looks for first


def header(runs: Sequence[RunData], title: str) -> str:
    logo = (
        '<svg viewBox="0 0 22 22" fill="none" stroke-width="2.4" stroke-linecap="round" aria-hidden="true">'
        '<path stroke="var(--c0)" d="M2 6.5h2.5M11 6.5h9M2 15.5h9M17.5 15.5h2.5"/>'
        '<path stroke="var(--c1)" d="M7.75 2v11.5M7.75 18.5v1.5M14.25 2v1.5M14.25 9.5v10.5"/></svg>'
    )
    troubles = [text for run in runs for text in _troubles(run, len(runs))]
    problems = "".join(f'<p class="problem">{escape(text)}</p>' for text in troubles)
    if len(runs) == 1:
        body = f'<p class="lead">{escape(describe(runs[0]))}</p>{problems}{cards(runs[0])}{warnings(runs)}'
    else:
        chips = "".join(
            f'<button data-toggle="{i}" aria-pressed="true"><i class="swatch {color(i)}"></i>'
            f"{escape(run.name)}</button>"
            for i, run in enumerate(runs)
        )
        lead = ", ".join(dict.fromkeys(subject(run) for run in runs)) + "."
        body = f'<p class="lead">{escape(lead)}</p>{problems}<div class="runs">{chips}</div>{comparison(runs)}'
        body += warnings(runs)
    return f'<header><div class="mark">{logo}weft report</div><h1>{escape(title)}</h1>{body}</header>'


def warnings(runs: Sequence[RunData]) -> str:
    """What the runs warned of: each sentence once, with the runs that said it where there are several runs."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for text in run.warnings:
            said.setdefault(text, []).append(run.name)
    if not said:
        return ""
    who = {text: "" if len(runs) == 1 else f"{', '.join(names)}: " for text, names in said.items()}
    items = "".join(f"<li>{escape(who[text] + text)}</li>" for text in said)
    return f'<div class="panel warnings"><h3>Warnings</h3><ul>{items}</ul></div>'


def graph_of(run: RunData) -> str:
    graph = run.summary.get("graph")
    if isinstance(graph, dict) and graph.get("name"):
        return str(graph["name"])
    data = run.config.get("data")
    return str(data if not isinstance(data, dict) else data.get("name") or data.get("path") or "a graph")


def subject(run: RunData) -> str:
    """Model and graph."""
    model = run.summary.get("model") or run.config.get("model") or "A model"
    model = str(model.get("name", "A model") if isinstance(model, dict) else model)
    text = f"{model.upper() if len(model) <= 4 else model} on {graph_of(run)}"
    graph = run.summary.get("graph")
    if isinstance(graph, dict) and number(graph.get("num_nodes")) and number(graph.get("num_edges")):
        nodes, edges = format_number(graph["num_nodes"]), format_number(graph["num_edges"])
        text += f" ({nodes} vertices, {edges} edges)"
    return text


def describe(run: RunData) -> str:
    """One or two sentences: model, graph, workers, and how it ended."""
    text = subject(run)
    if run.num_workers:
        text += f", {run.num_workers} worker{'s' if run.num_workers > 1 else ''}"
    strategy = run.summary.get("strategy") or run.config.get("strategy")
    if isinstance(strategy, str):
        text += f", strategy {strategy}"
    if run.status == "training":
        return f"{text}. In training, {run.num_epochs} epoch{'s' if run.num_epochs != 1 else ''} so far."
    return f"{text}. {run.status.capitalize()} after {run.num_epochs} epoch{'s' if run.num_epochs != 1 else ''}."


def _troubles(run: RunData, num_runs: int) -> list[str]:
    who = "" if num_runs == 1 else f"{run.name}: "
    texts = [who + text for text in run.problems]
    if run.status == "unfinished":
        texts.append(
            f"{who}There is no summary: the run was cut off, or goes on where that cannot be seen from here. "
            f"What it recorded up to epoch {run.num_epochs} is shown."
        )
    elif run.status not in ("finished", "training"):
        texts.append(f"{who}The run was {run.status}; what it recorded up to epoch {run.num_epochs} is shown.")
    if run.diverged_at() is not None:
        texts.append(f"{who}The loss is not a number from epoch {run.diverged_at()} on: the training diverged.")
    return texts


def cards(run: RunData) -> str:
    """The figures of one run that one looks for first."""
    items: list[tuple[str, str, str]] = []
    name = words(run.metric)
    test, val = run.result("test"), run.result("val")
    at = f"at epoch {run.best_epoch}" if run.best_epoch is not None else ""
    if test is not None:
        items.append((f"test {name}", metric_text(run, test), f"{at}, the best on validation" if at else ""))
    if val is not None:
        items.append((f"validation {name}", metric_text(run, val), at))
    if test is None and val is None and run.records:
        losses = [loss for _, loss in run.curve("train_loss") if loss is not None]
        items += [("training loss", format_number(losses[-1]), f"after {run.num_epochs} epochs")] if losses else []
    median, total = run.epoch_seconds(), run.epoch_seconds("total")
    if median is not None:
        whole = f"median; {format_seconds(total)} in all" if total is not None else "median"
        items.append(("epoch", format_seconds(median), whole))
    wire = run.total_bytes()
    if wire is not None:
        items.append(("on the wire", format_bytes(wire), "per epoch, all workers"))
    memory = run.peak_memory()
    if memory:
        of = f"highest of {len(memory)} workers" if len(memory) > 1 else "of the one worker"
        items.append(("peak memory", format_bytes(max(memory)), of))
    items += _function_cards(run)
    drawn = "".join(
        f'<div class="card"><span>{escape(a)}</span><b>{escape(b)}</b><span>{escape(c)}</span></div>'
        for a, b, c in items
    )
    return f'<div class="cards">{drawn}</div>' if drawn else ""


def _function_cards(run: RunData) -> list[tuple[str, str, str]]:
    """The figures of a run with functions: tasks and dollars."""
    items: list[tuple[str, str, str]] = []
    tasks, spent = run.tasks(), run.cost()
    away = [figures for (_, place), figures in tasks.items() if place == FUNCTIONS]
    if tasks:
        count = count_text(sum(figures["tasks"] for figures in tasks.values()))
        items.append(("tensor tasks", count, f"per epoch, {count_text(tasks_of(tasks, FUNCTIONS))} in functions"))
    if away:
        low, high = (pick(figures["median"] for figures in away) for pick in (min, max))
        typical = format_seconds(low) if low == high else f"{format_seconds(low)} to {format_seconds(high)}"
        items.append(("latency of a task", typical, "medians of the kinds of tasks"))
    if spent:
        each = dollars(spent.get("total", 0.0) / max(1, run.num_epochs))
        items.append(("cost", dollars(spent.get("total", 0.0)), f"all epochs; {each} each"))
    return items


@dataclass(frozen=True)
class Column:
    """A figure to compare runs by; `better` is +1 or -1 where high or low is better, 0 where neither is."""

    head: str
    value: Callable[[RunData], float | None]
    text: Callable[[RunData, float], str]
    better: int = 0


def _columns(runs: Sequence[RunData]) -> list[Column]:
    metrics = {run.metric for run in runs}
    name = f" {words(runs[0].metric)}" if len(metrics) == 1 else ""
    comparable = 0 if len(metrics) > 1 else -1 if lower_is_better(runs[0].metric) else 1
    return [
        Column(f"test{name}", lambda run: run.result("test"), metric_text, comparable),
        Column(f"validation{name}", lambda run: run.result("val"), metric_text, comparable),
        Column("best epoch", lambda run: run.best_epoch, lambda _, v: format_number(v)),
        Column("epochs", lambda run: run.num_epochs, lambda _, v: format_number(v)),
        Column("epoch, median", lambda run: run.epoch_seconds(), lambda _, v: format_seconds(v), -1),
        Column("in all", lambda run: run.epoch_seconds("total"), lambda _, v: format_seconds(v), -1),
        Column("wire per epoch", lambda run: run.total_bytes(), lambda _, v: format_bytes(v), -1),
        Column("peak memory", lambda run: max(run.peak_memory(), default=None), lambda _, v: format_bytes(v), -1),
        Column("cost", lambda run: run.cost().get("total"), lambda _, v: dollars(v), -1),
    ]


def comparison(runs: Sequence[RunData]) -> str:
    """A table of the runs' figures, the best of each column marked."""
    heads, cells = "", [""] * len(runs)
    for column in _columns(runs):
        values = [column.value(run) for run in runs]
        known = [value for value in values if value is not None]
        if not known:
            continue
        best = max(known) if column.better > 0 else min(known)
        decided = column.better != 0 and min(known) != max(known)
        heads += f'<th class="n">{escape(column.head)}</th>'
        for index, (run, value) in enumerate(zip(runs, values, strict=True)):
            mark = " best" if decided and value == best else ""
            text = NOTHING if value is None else column.text(run, value)
            cells[index] += f'<td class="n{mark}">{escape(text)}</td>'
    rows = "".join(
        f'<tr data-run="{i}"><td><i class="swatch {color(i)}"></i>{escape(run.name)}</td>'
        f'<td><span class="state {escape(run.status)}">{escape(run.status)}</span></td>{cells[i]}</tr>'
        for i, run in enumerate(runs)
    )
    return (
        '<div class="panel"><div class="scroll"><table>'
        f"<thead><tr><th>run</th><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


# The bottom: on what it ran


def footer(runs: Sequence[RunData]) -> str:
    machines: dict[str, list[str]] = {}
    for run in runs:
        machine = run.summary.get("machine")
        if isinstance(machine, dict) and machine:
            machines.setdefault(_machine_text(machine), []).append(run.name)
    lines = [text if len(machines) == 1 else f"{', '.join(names)}: {text}" for text, names in machines.items()]
    lines.append(f"Made on {datetime.now():%Y-%m-%d at %H:%M}.")
    return "<footer>" + "".join(f"<div>{escape(line)}</div>" for line in lines) + "</footer>"


def _machine_text(machine: Mapping[str, Any]) -> str:
    parts = [str(machine["cpu"])] if machine.get("cpu") else []
    if number(machine.get("cores")) is not None:
        parts.append(f"{machine['cores']} cores")
    memory = number(machine.get("memory_bytes"))
    if memory is not None:
        parts.append(f"{format_bytes(memory)} of memory")
    parts += [f"{name} {machine[name]}" for name in ("torch", "python") if machine.get(name)]
    if machine.get("kernels"):
        parts.append(f"{machine['kernels']} kernels")
    return ", ".join(parts)
