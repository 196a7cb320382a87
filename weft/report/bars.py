"""Bars: stacked rows on one scale, one total with its pieces, and columns in groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.report.figure import Scale, figure, grid, missing, run_attribute, tip
from weft.report.text import (
    Format,
    escape,
    format_bytes,
    format_percent,
    ticks,
)


@dataclass(frozen=True)
class Bar:
    """One row or column: a name and the pieces it is made of (name, value, color)."""

    name: str
    pieces: Sequence[tuple[str, float, str]]
    run: int | None = None
    total: str = ""  # shown at the end; the sum if empty
    swatch: str = ""  # a color before the name


def stacked_rows(bars: Sequence[Bar], title: str, formatter: Format, note: str = "") -> str:
    """Horizontal stacked bars on one scale, to compare totals and what they are made of."""
    longest = max((sum(value for _, value, _ in bar.pieces) for bar in bars), default=0.0)
    if longest <= 0:
        return missing(title, note or "Nothing to show.")
    rows = []
    for bar in bars:
        total = sum(value for _, value, _ in bar.pieces)
        pieces = "".join(
            f'<i class="piece {color}" style="width:{100 * value / longest:.3f}%" '
            + tip(name, f"{formatter(value)} · {format_percent(value / total)}")
            + "></i>"
            for name, value, color in bar.pieces
            if value > 0
        )
        run = run_attribute(bar.run)
        swatch = f'<i class="swatch {bar.swatch}"></i>' if bar.swatch else ""
        label = f'<div class="label">{swatch}{escape(bar.name)}</div>' if bar.name else ""
        end = escape(bar.total or formatter(total))
        rows.append(
            f'<div class="row"{run}>{label}<div class="track">{pieces}</div><div class="total">{end}</div></div>'
        )
    colors = {name: color for bar in bars for name, _, color in bar.pieces}
    drawn = {name for bar in bars for name, value, _ in bar.pieces if value > 0}
    legend = [(name, f"{color} square", None) for name, color in colors.items() if name in drawn]
    return figure(title, f'<div class="rows">{"".join(rows)}</div>', legend, note)


def breakdown(pieces: Sequence[tuple[str, float, str]], title: str, formatter: Format, note: str = "") -> str:
    """One total and what it is made of: a stacked bar over a table of its pieces (name, value, color)."""
    total = sum(value for _, value, _ in pieces)
    if total <= 0:
        return missing(title, note or "Nothing to show.")
    bar = "".join(
        f'<i class="piece {color}" style="width:{100 * value / total:.3f}%" {tip(name, formatter(value))}></i>'
        for name, value, color in pieces
        if value > 0
    )
    rows = "".join(
        f'<tr><td><i class="swatch {color}"></i>{escape(name)}</td><td class="n">{escape(formatter(value))}</td>'
        f'<td class="n soft">{escape(format_percent(value / total))}</td></tr>'
        for name, value, color in pieces
        if value > 0
    )
    return figure(
        title, f'<div class="track tall">{bar}</div><table class="parts"><tbody>{rows}</tbody></table>', (), note
    )


def columns(groups: Sequence[Bar], title: str, formatter: Format, note: str = "") -> str:
    """Vertical bars in groups: each piece of a group is one column (not stacked)."""
    values = [value for group in groups for _, value, _ in group.pieces]
    if not values or max(values) <= 0:
        return missing(title, note or "Nothing to show.")
    marks = ticks(0, max(values), 4, 1024 if formatter is format_bytes else 10)
    scale = Scale(0, marks[-1])
    drawn = []
    for group in groups:
        run = run_attribute(group.run)
        items = "".join(
            f'<div class="slot"><i class="column {color}" style="height:{scale(value):.2f}%" '
            + tip(group.name, f"{name}: {formatter(value)}")
            + "></i></div>"
            for name, value, color in group.pieces
        )
        label = group.total or group.name
        drawn.append(
            f'<div class="group" style="flex-grow:{len(group.pieces)}"{run}><div class="slots">{items}</div>'
            f'<span class="xt">{escape(label)}</span></div>'
        )
    body = f'<div class="box bars">{grid(marks, scale, formatter)}<div class="groups">{"".join(drawn)}</div></div>'
    return figure(title, body, (), note)
