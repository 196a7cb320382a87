"""The section of a report about time: how long epochs take, what they are made of, and one of them as a timeline."""

import statistics
from collections.abc import Mapping, Sequence

from weft.report.bars import Bar, breakdown, stacked_rows
from weft.report.figure import missing
from weft.report.lines import Line, line_plot
from weft.report.rundata import RunData
from weft.report.spans import CATEGORIES, EpochTrace, SpanTime
from weft.report.style import color, curve_name, in_grid, run_column, section, tag, words
from weft.report.text import escape, format_percent, format_seconds
from weft.report.timeline import Block, timeline

MAX_BLOCKS = 1500  # of one timeline: beyond, the shortest spans are left out

_PHASE_COLORS = {
    "forward": "k-compute",
    "backward": "k-compute2",
    "optimiser": "k-compute3",
    "graph": "k-compute",
    "rest": "k-compute2",
    "wait": "k-wait",
    "exchange_wait": "k-wait",
    "plan": "k-io",
    "all_reduce": "k-communicate",
    "assign": "k-communicate",
}
_CATEGORY_NAMES = {
    "compute": "computing",
    "wait": "waiting for other workers",
    "communicate": "packing and sending",
    "io": "reading and writing",
    "other": "not traced",
}


def time(runs: Sequence[RunData]) -> str:
    curves = [
        Line(curve_name(run, runs, "epoch"), points, color(i), run=tag(i, runs))
        for i, run in enumerate(runs)
        if (points := run.curve("seconds"))
    ]
    plots = []
    if curves:
        top, note = _ceiling(curves)
        plots.append(line_plot(curves, "Time of each epoch", format_seconds, from_zero=True, top=top, note=note))
    if any(run.phases() for run in runs):
        plots.append(_phase_plot(runs))
    length = _common_length(runs)
    traces = "".join(
        _timeline_panel(i, run, runs, length or run.trace.microseconds)
        for i, run in enumerate(runs)
        if run.trace is not None and not run.function_usage()
    )
    if not traces and curves:
        why = "No trace was recorded."
        if any(run.function_usage() for run in runs):
            why = "The tasks of intervals are not traced; the next section has their numbers and times."
        traces = f'<div class="grid">{missing("Timeline of one epoch", why)}</div>'
    return section("Time", _time_text(runs), in_grid(*plots), traces)


def _ceiling(curves: Sequence[Line]) -> tuple[float | None, str]:
    """Where to cut the axis so that a slow first epoch does not flatten all others."""
    values = [[value for _, value in line.points if value is not None] for line in curves]
    usual = max((statistics.quantiles(own, n=10)[-1] for own in values if len(own) >= 5), default=0.0)
    highest = max((value for own in values for value in own), default=0.0)
    if usual == 0 or highest <= 2 * usual:
        return None, ""
    return 1.5 * usual, f"Cut off at the top: the slowest epoch took {format_seconds(highest)}."


def _time_text(runs: Sequence[RunData]) -> str:
    known = [(seconds, run) for run in runs if (seconds := run.epoch_seconds()) is not None]
    if not known:
        return "No epoch was timed."
    if len(known) == 1:
        seconds, run = known[0]
        total = run.epoch_seconds("total")
        return f"An epoch takes {format_seconds(seconds)} (median)" + (
            f", all {run.num_epochs} together {format_seconds(total)}." if total is not None else "."
        )
    (fast, quickest), (slow, slowest) = min(known, key=lambda p: p[0]), max(known, key=lambda p: p[0])
    if fast <= 0 or slow / fast < 1.02:
        return "The runs take the same time per epoch."
    ratio = f"{slow / fast:.2g} times as fast as {slowest.name}"
    return f"{quickest.name} is quickest: an epoch takes {format_seconds(fast)}, {ratio}."


def _phase_plot(runs: Sequence[RunData]) -> str:
    title = "What an epoch is made of"
    phases = [run.phases() for run in runs]
    note = "The median epoch. " + _evaluation_text(runs)
    names = dict.fromkeys((*_PHASE_COLORS, *(name for own in phases for name in own)))  # all in the same order
    pieces = [
        [(words(name), own.get(name, 0.0), _PHASE_COLORS.get(name, "k-other")) for name in names] for own in phases
    ]
    if len(runs) == 1:
        return breakdown(pieces[0], title, format_seconds, note)
    bars = [Bar(run.name, pieces[i], i, swatch=color(i)) for i, run in enumerate(runs) if phases[i]]
    return stacked_rows(bars, title, format_seconds, note)


def _evaluation_text(runs: Sequence[RunData]) -> str:
    known = [(run, seconds) for run in runs if (seconds := run.evaluation_seconds()) is not None]
    whose = [f"{run.name} " * (len(runs) > 1) + format_seconds(seconds) for run, seconds in known]
    return f"Evaluation takes its own time after it: {', '.join(whose)}." if known else ""


def _common_length(runs: Sequence[RunData]) -> float | None:
    """Microseconds of an axis on which all timelines can be compared; None where one would be too short to read."""
    lengths = [run.trace.microseconds for run in runs if run.trace is not None]
    return max(lengths) if lengths and max(lengths) < 6 * min(lengths) else None


def _timeline_panel(index: int, run: RunData, runs: Sequence[RunData], length: float) -> str:
    assert run.trace is not None
    trace = run.trace
    blocks, left_out = _blocks(trace, length)
    lanes = [(f"worker {worker}", blocks[worker]) for worker in trace.spans]
    what = f"imeline of {'all that was traced' if trace.epoch is None else f'epoch {trace.epoch}'}"
    head = f'<i class="swatch {color(index)}"></i> {escape(run.name)}: t{what}' if len(runs) > 1 else f"T{what}"
    shares = {worker: trace.shares(worker) for worker in trace.spans}
    used = [category for category in CATEGORIES if any(category in share for share in shares.values())]
    legend = "".join(f'<span class="key"><i class="k-{c} square"></i>{escape(_CATEGORY_NAMES[c])}</span>' for c in used)
    note = _wait_text(shares) + (f" The {left_out} shortest spans are not drawn." if left_out else "")
    return (
        f'<figure class="panel"{run_column(index, runs)}><figcaption>{head}</figcaption>'
        f'{timeline(lanes, length / 1e6)}<div class="legend">{legend}</div>'
        f'<p class="note">{escape(note.strip())}</p>{_share_table(shares, used)}</figure>'
    )


def _blocks(trace: EpochTrace, length: float) -> tuple[dict[int, list[Block]], int]:
    """By worker a strip of what it did at each moment, and below it the spans as they are nested."""
    entries = [(worker, span, 0) for worker, stretches in trace.activity.items() for span in stretches]
    entries += [(worker, span, span.depth + 1) for worker, spans in trace.spans.items() for span in spans]
    entries.sort(key=lambda entry: -entry[1].duration)
    blocks: dict[int, list[Block]] = {worker: [] for worker in trace.spans}
    for worker, span, row in entries[:MAX_BLOCKS]:
        blocks[worker].append(_block(span, row, length))
    for own in blocks.values():
        own.sort(key=lambda block: (block.depth, block.left))
    return blocks, max(0, len(entries) - MAX_BLOCKS)


def _block(span: SpanTime, row: int, length: float) -> Block:
    kind = span.category if span.category in CATEGORIES else "other"
    left, width = 100 * span.start / (length or 1.0), 100 * span.duration / (length or 1.0)
    duration = format_seconds(span.duration / 1e6)
    if row == 0:
        return Block(left, width, 0, "", f"k-{kind}", (_CATEGORY_NAMES[kind], duration))
    args = ", ".join(f"{words(str(key))} {value}" for key, value in span.args.items())
    return Block(
        left, width, row, words(span.name), f"k-{kind} pale", (words(span.name), f"{duration}, {span.category}", args)
    )


def _share_table(shares: Mapping[int, Mapping[str, float]], used: Sequence[str]) -> str:
    """Which share of the epoch each worker computed and waited, in figures."""
    heads = "".join(f'<th class="n">{escape(_CATEGORY_NAMES[c])}</th>' for c in used)
    rows = "".join(
        f"<tr><td>worker {escape(worker)}</td>"
        + "".join(f'<td class="n">{escape(format_percent(share.get(c, 0.0)))}</td>' for c in used)
        + "</tr>"
        for worker, share in shares.items()
    )
    table = f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>Shares in figures</summary><div class="scroll">{table}</div></details>'


def _wait_text(shares: Mapping[int, Mapping[str, float]]) -> str:
    waits = {worker: share.get("wait", 0.0) for worker, share in shares.items()}
    if len(waits) < 2:
        return ""
    if not any(waits.values()):
        return "No worker waited for another."
    most, least = max(waits, key=lambda w: waits[w]), min(waits, key=lambda w: waits[w])
    return (
        f"Workers wait {format_percent(statistics.mean(waits.values()))} of the epoch on average; worker {most} the "
        f"longest ({format_percent(waits[most])}), worker {least} the shortest ({format_percent(waits[least])})."
    )
