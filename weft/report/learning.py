"""The section of a report about learning: loss, metric, gradient norm and learning rate over the epochs."""

import statistics
from collections.abc import Sequence

from weft.report.figure import missing
from weft.report.lines import Line, line_plot
from weft.report.rundata import RunData
from weft.report.style import (
    color,
    curve_name,
    in_grid,
    metric_format,
    metric_text,
    section,
    tag,
    words,
)
from weft.report.text import (
    format_number,
)
from weft.training.metrics import lower_is_better


def learning(runs: Sequence[RunData]) -> str:
    losses = [
        Line(curve_name(run, runs, "training"), run.curve("train_loss"), color(i), run=tag(i, runs))
        for i, run in enumerate(runs)
        if run.curve("train_loss")
    ]
    extra = [
        Line(f"{curve_name(run, runs, '')} validation".strip(), points, _second(i, runs), True, tag(i, runs))
        for i, run in enumerate(runs)
        if (points := run.curve("val_loss"))
    ]
    plots = [line_plot(losses + extra, "Loss", allow_log=True)] if losses else [missing("Loss", "No epoch yet.")]
    plots += [_metric_plot(runs, metric) for metric in dict.fromkeys(run.metric for run in runs)]
    small = [
        line_plot(_lines(runs, key), title, allow_log=True)
        for key, title in (("grad_norm", "Gradient norm"), ("learning_rate", "Learning rate"))
        if _varies(runs, key)
    ]
    return section("Learning", _learning_text(runs), in_grid(*plots), in_grid(*small))


def _metric_plot(runs: Sequence[RunData], metric: str) -> str:
    title = words(metric)[:1].upper() + words(metric)[1:]
    lines = []
    for i, run in enumerate(runs):
        for split, name in (("val", "validation"), ("test", "test"), ("train", "training")):
            if split == "train" and len(runs) > 1:
                continue  # several runs are compared by what they have not seen
            points = run.curve(f"{split}_{metric}") if run.metric == metric else []
            if any(value is not None for _, value in points):
                label = name if len(runs) == 1 else f"{run.name}, {name}"
                key = None if len(runs) == 1 else run.name if split == "val" else ""
                shade = _second(i, runs) if split == "test" else "c7" if split == "train" else color(i)
                mark = run.best_epoch if split == "val" else None
                lines.append(Line(label, points, shade, split == "test", tag(i, runs), mark, key))
    if not lines:
        return missing(title, "Nothing was evaluated.")
    aside = "solid on validation, dotted on test" if len(runs) > 1 and any(line.dashed for line in lines) else ""
    values = [value for line in lines for _, value in line.points if value is not None]
    bottom = None if lower_is_better(metric) else _floor(values)
    note = "" if bottom is None else "The axis is cut below: the first epochs start lower."
    return line_plot(lines, title, metric_format(metric), bottom=bottom, note=note, aside=aside)


def _floor(values: Sequence[float]) -> float | None:
    """Where to cut an axis so that the climb of the first epochs does not flatten what comes after."""
    if len(values) < 20:
        return None
    low, high = min(values), max(values)
    early = statistics.quantiles(values, n=5)[0]  # four fifths lie above
    bottom = high - 3 * (high - early)
    return bottom if bottom - low > 0.3 * (high - low) else None


def _second(run: int, runs: Sequence[RunData]) -> str:
    """A run's second curve: another colour where there is one run, dashes in its own where there are several."""
    return "c1" if len(runs) == 1 else color(run)


def _lines(runs: Sequence[RunData], key: str) -> list[Line]:
    return [
        Line(curve_name(run, runs, words(key)), points, color(i), run=tag(i, runs))
        for i, run in enumerate(runs)
        if (points := run.curve(key))
    ]


def _varies(runs: Sequence[RunData], key: str) -> bool:
    return any(len({value for _, value in run.curve(key)}) > 1 for run in runs)


def _learning_text(runs: Sequence[RunData]) -> str:
    known = [(run.result("test"), run) for run in runs if run.result("test") is not None]
    if len(runs) == 1:
        run = runs[0]
        losses = [loss for _, loss in run.curve("train_loss") if loss is not None]
        if len(losses) < 2:
            return "One epoch makes no curve yet." if losses else "No epoch was recorded."
        text = f"The training loss went from {format_number(losses[0])} to {format_number(losses[-1])}."
        val = run.result("val")
        if val is not None and run.best_epoch is not None:
            text += f" Validation {words(run.metric)} was best at epoch {run.best_epoch}: {metric_text(run, val)}."
        return text
    if len(known) < 2 or len({run.metric for run in runs}) > 1:
        return "The dot on a curve marks its best epoch on validation."
    sign = 1 if lower_is_better(runs[0].metric) else -1
    ordered = sorted(known, key=lambda pair: sign * (pair[0] or 0.0))
    (high, best), (low, _) = ordered[0], ordered[-1]
    gap = abs((high or 0.0) - (low or 0.0))
    spread = f"{100 * gap:.1f} points" if best.metric == "accuracy" else metric_text(best, gap)
    if high == low:
        return f"All runs reach {metric_text(best, high)} on the test set."
    return (
        f"{best.name} is best on the test set with {metric_text(best, high)}; the runs lie {spread} apart. "
        "The dot on a curve marks its best epoch on validation."
    )
