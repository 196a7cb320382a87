"""The sections of a report about resources: memory, the partition, and what the run cost."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from weft.cli.show import dollars
from weft.report.bars import Bar, breakdown, columns
from weft.report.figure import figure
from weft.report.rundata import RunData
from weft.report.style import (
    NOTHING,
    color,
    in_grid,
    section,
    table_by_run,
    tag,
    words,
)
from weft.report.text import (
    format_bytes,
    format_number,
    format_percent,
)
from weft.report.values import number


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
    return figure("Partition", table_by_run(rows, runs))


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


def cost(runs: Sequence[RunData]) -> str:
    """What runs whose products are done elsewhere cost."""
    priced = {i: spent for i, run in enumerate(runs) if (spent := run.cost())}
    if not priced:
        return ""
    if len(runs) == 1:
        pieces = [(name, value, shade) for (name, shade), value in zip(_PAID.items(), _paid(priced[0]), strict=True)]
        shown = breakdown(pieces, "What all epochs cost", dollars, _value_text(priced[0]))
        return section("Cost", _cost_text(runs[0], priced[0]), in_grid(shown))
    paid = {i: dict(zip(_PAID, _paid(spent), strict=True)) for i, spent in priced.items()}
    rows = {name: {i: dollars(own[name]) for i, own in paid.items()} for name in _PAID}
    rows["all epochs"] = {i: dollars(spent.get("total", 0.0)) for i, spent in priced.items()}
    rows["an epoch, in the mean"] = {
        i: dollars(spent.get("total", 0.0) / max(1, runs[i].num_epochs)) for i, spent in priced.items()
    }
    rows["value, 1 / (time x cost)"] = {i: format_number(spent.get("value", 0.0)) for i, spent in priced.items()}
    return section("Cost", "Dollars, by the price file of each run.", figure("Cost", table_by_run(rows, runs)))


_PAID = {  # what dollars are paid for, and its color
    "graph servers": "w0",
    "weight servers": "w5",
    "time of functions": "w1",
    "hedges that were not needed": "w6",
    "requests": "w2",
    "starts of functions": "w4",
}


def _paid(spent: Mapping[str, float]) -> list[float]:
    """Dollars for each of `_PAID`, which add up to the total: hedges are a part of the functions' time."""
    waste = min(spent.get("hedge_waste", 0.0), spent.get("function_time", 0.0))
    time = spent.get("function_time", 0.0) - waste
    names = ("graph_servers", "weight_servers", "requests", "init")
    servers, weights, requests, starts = (spent.get(name, 0.0) for name in names)
    return [servers, weights, time, waste, requests, starts]


def _cost_text(run: RunData, spent: Mapping[str, float]) -> str:
    total, epochs = spent.get("total", 0.0), max(1, run.num_epochs)
    return (
        f"{epochs:,} epochs cost {dollars(total)} by the run's price file: {dollars(total / epochs)} each, "
        f"{dollars(1000 * total / epochs)} for a thousand."
    )


def _value_text(spent: Mapping[str, float]) -> str:
    return f"Value, 1 / (time x cost) of an epoch: {format_number(spent.get('value', 0.0))}."
