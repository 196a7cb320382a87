"""The section of a report about traffic: bytes by class, and the bits of the rows that travel."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.report.bars import Bar, breakdown, stacked_rows
from weft.report.lines import stacked_areas
from weft.report.rundata import RunData
from weft.report.style import (
    color,
    in_grid,
    section,
    tag,
    words,
)
from weft.report.text import (
    format_bytes,
    format_number,
)

_BYTE_COLORS = {  # not the runs' colors: in a comparison both are on the page
    "hidden_forward": "w0",
    "hidden_backward": "w1",
    "features": "w2",
    "gradients": "w3",
    "ids": "w4",
    "topology": "w5",
    "control": "w6",
}


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
    areas += [figure for i, run, _ in counted for figure in _bits_chosen(i, run, runs)]
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


def _bits_chosen(index: int, run: RunData, runs: Sequence[RunData]) -> list[str]:
    """With how many bits rows travelled, for each layer and direction, whenever that was chosen."""
    chosen = run.bits_chosen()
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
