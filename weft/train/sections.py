"""The sections of a report: each takes the runs and gives HTML, or nothing where no run has what it shows.

The longest, about time, has its own module, `timing`.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from weft.train.plot import (
    Bar,
    Format,
    Line,
    breakdown,
    columns,
    escape,
    figure,
    format_bytes,
    format_number,
    format_percent,
    line_plot,
    missing,
    stacked_areas,
    stacked_rows,
)
from weft.train.rundata import RunData, flatten, number

NOTHING = "\N{EN DASH}"

_BYTE_COLORS = {  # not the runs' colors: in a comparison both are on the page
    "hidden_forward": "w0",
    "hidden_backward": "w1",
    "features": "w2",
    "gradients": "w3",
    "ids": "w4",
    "topology": "w5",
    "control": "w6",
}
_WORDS = {
    "roc_auc": "ROC AUC",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "ids": "vertex ids",
    "exchange_wait": "waiting for rows",
    "all_reduce": "gradient all-reduce",
    "plan": "planning minibatches",
}


def color(run: int) -> str:
    return f"c{run % 8}"


def words(name: str) -> str:
    """A key as a person would write it."""
    return _WORDS.get(name, name.replace("_", " "))


def metric_text(run: RunData, value: float | None) -> str:
    return NOTHING if value is None else _metric_format(run.metric)(value)


def _metric_format(metric: str) -> Format:
    return format_percent if metric == "accuracy" else lambda value: f"{value:.3f}"


def section(title: str, lead: str, *parts: str) -> str:
    body = "".join(parts)
    return f"<section><h2>{escape(title)}</h2><p>{escape(lead)}</p>{body}</section>" if body else ""


def in_grid(*figures: str) -> str:
    return f'<div class="grid">{"".join(figures)}</div>' if any(figures) else ""


def curve_name(run: RunData, runs: Sequence[RunData], what: str) -> str:
    """The name of a curve: the run where there are several, what it shows where there is one."""
    return what if len(runs) == 1 else run.name


# Did it learn?


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
    bottom = _floor([value for line in lines for _, value in line.points if value is not None])
    note = "" if bottom is None else "The axis is cut below: the first epochs start lower."
    return line_plot(lines, title, _metric_format(metric), bottom=bottom, note=note, aside=aside)


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


def tag(run: int, runs: Sequence[RunData]) -> int | None:
    return run if len(runs) > 1 else None


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
    ordered = sorted(known, key=lambda pair: -(pair[0] or 0.0))
    (high, best), (low, _) = ordered[0], ordered[-1]
    gap = (high or 0.0) - (low or 0.0)
    spread = f"{100 * gap:.1f} points" if best.metric == "accuracy" else f"{gap:.3f}"
    if high == low:
        return f"All runs reach {metric_text(best, high)} on the test set."
    return (
        f"{best.name} is best on the test set with {metric_text(best, high)}; the runs lie {spread} apart. "
        "The dot on a curve marks its best epoch on validation."
    )


# What went over the wire?


def traffic(runs: Sequence[RunData]) -> str:
    counted = [(i, run, run.bytes_per_epoch()) for i, run in enumerate(runs) if run.total_bytes() is not None]
    if not counted:
        return ""
    if all(run.total_bytes() == 0 for _, run, _ in counted):
        return section("Traffic", "Nothing went over the wire.", " ")
    pieces = {
        i: [(words(name), value, _BYTE_COLORS.get(name, "k-other")) for name, value in classes.items()]
        for i, _, classes in counted
    }
    title = "Bytes of an epoch by class"
    if len(runs) == 1:
        per_epoch = breakdown(pieces[0], title, format_bytes, _once_text(runs[0]))
    else:
        bars = [Bar(run.name, pieces[i], i, swatch=color(i)) for i, run, _ in counted]
        per_epoch = stacked_rows(bars, title, format_bytes, _traffic_text(counted))
    areas = [_bytes_over_time(i, run, runs) for i, run, _ in counted if _bytes_vary(run)]
    areas += [figure for i, run, _ in counted for figure in _widths(i, run, runs)]
    lead = "Payload bytes sent by all workers together, counted exactly at the communicator; medians over the epochs."
    return section("Traffic", lead, in_grid(per_epoch, *areas))


def _traffic_text(counted: Sequence[tuple[int, RunData, dict[str, float]]]) -> str:
    totals = [(run.total_bytes() or 0.0, run.name) for _, run, _ in counted]
    (low, least), (high, most) = min(totals), max(totals)
    if low == high:
        return "All runs send the same number of bytes."
    if low == 0:
        return f"{least} sends nothing."
    return f"{least} sends least, {high / low:.3g} times less than {most}."


def _once_text(run: RunData) -> str:
    once = run.bytes_sent_once()
    if once <= 0.01 * (run.total_bytes() or 0.0):
        return ""
    return f"The first epoch sent {format_bytes(once)} more, for what has to be fetched only once."


def _bytes_vary(run: RunData) -> bool:
    """Whether epochs differ; the first does not count, it also fetches what is needed once."""
    totals = [sum(classes.values()) for _, classes in run.bytes_by_epoch()][1:]
    return len(totals) > 2 and min(totals) < 0.98 * max(totals)


def _bytes_over_time(index: int, run: RunData, runs: Sequence[RunData]) -> str:
    names = list(run.bytes_per_epoch())
    series = [
        (
            words(name),
            _BYTE_COLORS.get(name, "k-other"),
            [classes.get(name, 0.0) for _, classes in run.bytes_by_epoch()],
        )
        for name in names
    ]
    series = [(name, shade, values) for name, shade, values in series if any(values)]
    title = "Bytes over the epochs" + (f", {run.name}" if len(runs) > 1 else "")
    epochs = [float(epoch) for epoch, _ in run.bytes_by_epoch()]
    return stacked_areas(epochs, series, title, format_bytes, tag(index, runs))


def _widths(index: int, run: RunData, runs: Sequence[RunData]) -> list[str]:
    """With how many bits rows travelled, for each layer and direction, whenever that was chosen."""
    chosen = run.widths()
    figures = []
    for place in dict.fromkeys(place for _, places in chosen for place in places):
        layer, direction = place
        bars = [
            Bar(f"after epoch {epoch}", _bit_pieces(places[place]), tag(index, runs), mean_bits(places[place]))
            for epoch, places in _some(chosen)
            if place in places
        ]
        whose = f", {run.name}" if len(runs) > 1 else ""
        figures.append(stacked_rows(bars, f"Rows by their bits, {layer}, {direction}{whose}", format_number))
    return figures


def _bit_pieces(counts: Mapping[str, float]) -> list[tuple[str, float, str]]:
    shades = {"2": "w2", "4": "w1", "8": "w0"}
    return [(f"{bits} bits", counts.get(bits, 0.0), shade) for bits, shade in shades.items()]


def mean_bits(counts: Mapping[str, float]) -> str:
    rows = sum(counts.values())
    return f"{sum(int(bits) * count for bits, count in counts.items()) / rows:.1f} bits" if rows else "no rows"


def _some(chosen: Sequence[Any], most: int = 8) -> list[Any]:
    """The first and the last, and others evenly between."""
    if len(chosen) <= most:
        return list(chosen)
    return [chosen[round(k * (len(chosen) - 1) / (most - 1))] for k in range(most)]


# How much memory, and how was the graph cut?


def memory_and_partition(runs: Sequence[RunData]) -> str:
    groups = [
        Bar(
            run.name if len(runs) > 1 else "",
            [(f"worker {w}", value, color(i)) for w, value in enumerate(run.peak_memory())],
            tag(i, runs),
            run.name
            if len(runs) > 1
            else "worker 0" + (f" to {len(run.peak_memory()) - 1}" if len(run.peak_memory()) > 1 else ""),
        )
        for i, run in enumerate(runs)
        if run.peak_memory()
    ]
    memory = columns(groups, "Peak memory of each worker", format_bytes, _memory_text(runs)) if groups else ""
    cuts = [(i, run, run.summary["partition"]) for i, run in enumerate(runs) if _partition(run)]
    partition = _partition_table(cuts, runs) if cuts else ""
    if not memory and not partition:
        return ""
    title = "Memory and partition" if memory and partition else "Memory" if memory else "Partition"
    lead = "The most physical memory that each worker held" if memory else ""
    lead += " and how" if memory and partition else "How" if partition else ""
    lead += " the graph was cut into parts." if partition else "."
    return section(title, lead, in_grid(memory, partition))


def _partition(run: RunData) -> bool:
    return isinstance(run.summary.get("partition"), Mapping)


def _memory_text(runs: Sequence[RunData]) -> str:
    peaks = [run.peak_memory() for run in runs if run.peak_memory()]
    if len(peaks) != 1 or len(peaks[0]) < 2:
        return ""
    ratio = max(peaks[0]) / statistics.mean(peaks[0])
    return f"{format_bytes(sum(peaks[0]))} in all; the largest is {ratio:.2f} times the mean."


def _partition_table(cuts: Sequence[tuple[int, RunData, Mapping[str, Any]]], runs: Sequence[RunData]) -> str:
    flat = {i: flatten_values(partition) for i, _, partition in cuts}
    keys = list(dict.fromkeys(key for values in flat.values() for key in values))
    rows = {words(key): {i: values.get(key, NOTHING) for i, values in flat.items()} for key in keys}
    return figure("Partition", _table_by_run(rows, runs))


def cost(runs: Sequence[RunData]) -> str:
    """What runs whose products are done elsewhere cost."""
    priced = {i: spent for i, run in enumerate(runs) if (spent := run.cost())}
    if not priced:
        return ""
    parts = ("graph_servers", "weight_servers", "function_time", "requests", "init", "hedge_waste", "total", "value")
    rows = {words(part): {i: _money(part, spent[part]) for i, spent in priced.items()} for part in parts}
    lead = (
        "Dollars for an epoch, by the run's price file, medians. Hedge waste is part of function time. Value is "
        "1 / (time x cost)."
    )
    return section("Cost", lead, figure("Cost of an epoch", _table_by_run(rows, runs)))


def _table_by_run(rows: Mapping[str, Mapping[int, str]], runs: Sequence[RunData]) -> str:
    """Names of rows to what each run, by its number, has there; runs are named where there are several."""
    shown = next(iter(rows.values()), {})
    heads = "".join(
        f'<th class="n"{run_attribute(i, runs)}><i class="swatch {color(i)}"></i> {escape(runs[i].name)}</th>'
        for i in shown
    )
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="n"{run_attribute(i, runs)}>{escape(cells[i])}</td>' for i in shown)
        + "</tr>"
        for name, cells in rows.items()
    )
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if len(runs) > 1 else ""
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _money(part: str, value: float) -> str:
    return format_number(value) if part == "value" else f"{value:.2e}" if value else "0"


def run_attribute(index: int, runs: Sequence[RunData]) -> str:
    return f' data-run="{index}"' if len(runs) > 1 else ""


def flatten_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Partition figures as text: fractions as percents, counts grouped, lists as their range."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name, size = f"{prefix}{key}", number(value)
        if isinstance(value, Mapping):
            flat |= flatten_values(value, f"{name} ")
        elif isinstance(value, list) and value and all(number(item) is not None for item in value):
            low, high = min(value), max(value)
            flat[name] = format_number(low) if low == high else f"{format_number(low)} to {format_number(high)}"
        elif size is not None:
            flat[name] = format_percent(size) if "fraction" in name else format_number(size)
        elif value is not None:
            flat[name] = str(value)
    return flat


# Which settings?


def settings(runs: Sequence[RunData]) -> str:
    flat = [flatten(run.config) for run in runs]
    keys = list(dict.fromkeys(key for values in flat for key in values))
    if not keys:
        return ""
    if len(runs) == 1:
        rows = [(key, [flat[0][key]]) for key in keys]
        panel = (
            f'<details class="panel"><summary>All {len(keys)} settings</summary>{_settings_table(rows, runs)}</details>'
        )
        return section("Settings", "As they were resolved at the start and lie in config.yaml.", panel)
    rows = [(key, [values.get(key, NOTHING) for values in flat]) for key in keys]
    differing = [(key, values) for key, values in rows if len(set(values)) > 1]
    same = [(key, values[:1]) for key, values in rows if len(set(values)) == 1]
    shown = f'<div class="panel">{_settings_table(differing, runs)}</div>' if differing else ""
    table = _settings_table(same, runs[:1])
    rest = f'<details class="panel"><summary>{len(same)} settings are the same</summary>{table}</details>'
    count = len(differing)
    lead = (
        f"{count} setting{'s differ' if count != 1 else ' differs'} between the runs."
        if differing
        else "The runs have the same settings."
    )
    return section("Settings", lead, shown, rest if same else "")


def _settings_table(rows: Sequence[tuple[str, Sequence[str]]], runs: Sequence[RunData]) -> str:
    tags = [run_attribute(i, runs) for i in range(len(runs))]
    top = "".join(
        f'<th{tags[i]}><i class="swatch {color(i)}"></i> {escape(run.name)}</th>' for i, run in enumerate(runs)
    )
    head = f"<thead><tr><th></th>{top}</tr></thead>" if len(runs) > 1 else ""
    body = "".join(
        f'<tr><td class="key-name">{escape(key)}</td>'
        + "".join(f'<td class="value"{tags[i]}>{escape(value)}</td>' for i, value in enumerate(values))
        + "</tr>"
        for key, values in rows
    )
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
