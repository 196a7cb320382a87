"""Curves and stacked areas over the epochs, as HTML and SVG that stretch with the page and carry their own numbers.

Lines are SVG in a box of 100 x 100 that stretches freely (strokes do not); everything with text or corners is HTML
placed by percentages. So a plot is sharp and legible at any width and needs no library. `page.js` shows what
`data-plot` and `data-tip` hold under the pointer. Every text from outside passes `escape`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.report.figure import Scale, figure, grid, missing, run_attribute
from weft.report.text import (
    Format,
    escape,
    format_bytes,
    format_number,
    log_ticks,
    ticks,
)

Points = Sequence[tuple[float, float | None]]

MAX_POINTS = 240  # of a line: more cannot be told apart on a screen


@dataclass(frozen=True)
class Line:
    """One curve. Points without a finite value interrupt it."""

    name: str
    points: Points
    color: str = "c0"  # a class of page.css
    dashed: bool = False
    run: int | None = None  # hidden together with the run
    mark: float | None = None  # the x of a point to stand out
    key: str | None = None  # what the legend calls it; the name unless given, left out if empty


def thin(points: Points) -> Points:
    """At most about MAX_POINTS points: of each stretch the first, the lowest and the highest, and the last."""
    if len(points) <= MAX_POINTS:
        return list(points)
    kept = {0, len(points) - 1}
    stretch = 3 * len(points) / MAX_POINTS
    for index in range(math.ceil(MAX_POINTS / 3)):
        span = range(int(index * stretch), min(len(points), int((index + 1) * stretch)))
        known = [i for i in span if points[i][1] is not None]
        kept.update([span[0], *known[:1]])
        if known:
            kept.update([min(known, key=lambda i: points[i][1] or 0), max(known, key=lambda i: points[i][1] or 0)])
    return [points[i] for i in sorted(kept)]


def line_plot(
    lines: Sequence[Line],
    title: str,
    formatter: Format = format_number,
    from_zero: bool = False,
    bottom: float | None = None,
    top: float | None = None,
    allow_log: bool = False,
    note: str = "",
    aside: str = "",
) -> str:
    """Curves over the epochs. `bottom` and `top` cut the axis; `allow_log` takes a log scale where it is due."""
    lines = [replace(line, points=_finite(line.points)) for line in lines]
    values = [_clamp(y, bottom, top) for line in lines for _, y in line.points if y is not None]
    if not values:
        return missing(title, "Nothing was recorded.")
    low, high = min(values), max(values)
    log = allow_log and low > 0 and high / low > 30
    marks = log_ticks(low, high) if log else ticks(min(0.0, low) if from_zero else low, high)
    if len(marks) == 1:
        marks = [marks[0], marks[0] * 10]
    y_scale = Scale(marks[0], marks[-1], log)
    xs = [x for line in lines for x, _ in line.points]
    x_scale = Scale(min(xs), max(xs)) if max(xs) > min(xs) else Scale(min(xs) - 1, max(xs) + 1)
    svg = "".join(_path(line, x_scale, y_scale, _hidden(k, lines, y_scale)) for k, line in enumerate(lines))
    data = [_hover(line, x_scale, y_scale, formatter) for line in lines]
    cut = "cut-bottom" if bottom is not None else "cut-top" if top is not None else ""
    body = _box(data, grid(marks, y_scale, formatter), svg, x_scale, _x_marks(x_scale, xs), cut)
    keys = [(line.name if line.key is None else line.key, line) for line in lines]
    legend = [(key, line.color + (" dash" if line.dashed else ""), line.run) for key, line in keys if key]
    asides = [text for text in (aside, "log scale" if log else "") if text]
    return figure(title, body, legend if len(legend) > 1 else (), note, ", ".join(asides))


def _x_marks(scale: Scale, xs: Sequence[float]) -> list[float]:
    if max(xs) == min(xs):
        return [xs[0]]
    near = 0.06 * (scale.high - scale.low)
    rest = [x for x in ticks(scale.low, scale.high, 6) if scale.low + near < x <= scale.high and x == int(x)]
    return [scale.low, *rest]


def _box(data: object, back: str, svg: str, x_scale: Scale, x_marks: Sequence[float], cut: str = "") -> str:
    """The area of a plot over x: grid lines behind, curves, marks below, and the data for the pointer."""
    values = escape(json.dumps(data, separators=(",", ":")))
    marks = "".join(f'<span class="xt" style="left:{x_scale(x):.2f}%">{format_number(x)}</span>' for x in x_marks)
    return (
        f'<div class="box" data-plot="{values}">{back}'
        f'<svg class="{cut}" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{svg}</svg>'
        f"{marks}</div>"
    )


def _finite(points: Points) -> Points:
    return thin([(x, y if y is not None and math.isfinite(y) else None) for x, y in points])


def _clamp(value: float, low: float | None, high: float | None) -> float:
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def _hidden(index: int, lines: Sequence[Line], y_scale: Scale) -> bool:
    """Whether a later curve lies on this one, as those of equal runs do; it is then drawn wide, to be seen below."""
    own = dict(lines[index].points)
    for later in lines[index + 1 :]:
        common = [(own[x], y) for x, y in later.points if own.get(x) is not None and y is not None]
        if len(common) >= 0.9 * len(own) and all(abs(y_scale(a or 0.0) - y_scale(b)) < 1 for a, b in common):
            return True
    return False


def _path(line: Line, x_scale: Scale, y_scale: Scale, hidden: bool = False) -> str:
    pieces: list[list[str]] = [[]]
    dots = []
    for x, y in line.points:
        if y is None:
            pieces.append([])
            continue
        place = f"{x_scale(x):.2f} {100 - y_scale(y):.2f}"
        pieces[-1].append(place)
        if x == line.mark:
            dots.append(place)
    dots += [piece[0] for piece in pieces if len(piece) == 1]  # a lone point has no line to be seen by
    run = run_attribute(line.run)
    kind = (" dash" if line.dashed else "") + (" under" if hidden and not line.dashed else "")
    style = f'class="line {line.color}{kind}"{run}'
    drawn = "".join(f'<path {style} d="M{"L".join(piece)}"/>' for piece in pieces if len(piece) > 1)
    return drawn + "".join(f'<path class="dot {line.color}"{run} d="M{dot}h0"/>' for dot in dots)


def _hover(line: Line, x_scale: Scale, y_scale: Scale, formatter: Format) -> dict[str, object]:
    points = [
        [x, round(x_scale(x), 2), round(100 - y_scale(y), 2), formatter(y)] for x, y in line.points if y is not None
    ]
    return {"n": line.name, "c": line.color, "r": line.run, "p": points}


def stacked_areas(
    xs: Sequence[float],
    series: Sequence[tuple[str, str, Sequence[float]]],
    title: str,
    formatter: Format,
    run: int | None = None,
) -> str:
    """Areas on top of each other over a common x: (name, color, one value per x), the first at the bottom."""
    if len(xs) > MAX_POINTS:  # every k-th: the areas must share their points
        step = math.ceil(len(xs) / MAX_POINTS)
        xs, series = xs[::step], [(name, color, values[::step]) for name, color, values in series]
    tops = [sum(values[k] for _, _, values in series) for k in range(len(xs))]
    if len(xs) < 2 or max(tops) <= 0:
        return missing(title, "Nothing to show.")
    marks = ticks(0, max(tops), 5, 1024 if formatter is format_bytes else 10)
    y_scale, x_scale = Scale(0, marks[-1]), Scale(min(xs), max(xs))
    base = [0.0] * len(xs)
    drawn, data = [], []
    for name, color, values in series:
        top = [low + value for low, value in zip(base, values, strict=True)]
        outline = [*zip(xs, top, strict=True), *reversed(list(zip(xs, base, strict=True)))]
        places = "L".join(f"{x_scale(x):.2f} {100 - y_scale(y):.2f}" for x, y in outline)
        drawn.append(f'<path class="area {color}" d="M{places}Z"/>')
        points = [
            [x, round(x_scale(x), 2), round(100 - y_scale(y), 2), formatter(value)]
            for x, y, value in zip(xs, top, values, strict=True)
        ]
        data.append({"n": name, "c": color, "r": None, "p": points})
        base = top
    legend = [(name, f"{color} square", None) for name, color, _ in series]
    body = _box(data, grid(marks, y_scale, formatter), "".join(drawn), x_scale, _x_marks(x_scale, xs))
    return figure(title, body, legend, run=run)
