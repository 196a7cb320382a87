"""Small plots as HTML and SVG that stretch with the page and carry their own numbers.

Lines are SVG in a box of 100 x 100 that stretches freely (strokes do not), everything with text or corners is
HTML placed by percentages: so a plot is sharp and legible at any width and needs no library. `report.js` shows
what `data-plot` and `data-tip` hold under the pointer. Every text from outside passes `escape`.
"""

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

NBSP = "\N{NO-BREAK SPACE}"
MAX_POINTS = 240  # of a line: more cannot be told apart on a screen


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


# Numbers as people read them


def format_number(value: float) -> str:
    """Three or four significant digits, thousands grouped."""
    if not math.isfinite(value):
        return "not a number"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.2e}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(size)))}f}"


def format_percent(value: float) -> str:
    return f"{100 * value:.1f}{NBSP}%" if math.isfinite(value) else "not a number"


def format_seconds(value: float) -> str:
    if not math.isfinite(value):
        return "not a number"
    if value == 0:
        return f"0{NBSP}s"
    if value < 1e-3:
        return f"{value * 1e6:.3g}{NBSP}µs"
    if value < 1:
        return f"{value * 1e3:.3g}{NBSP}ms"
    if value < 120:
        return f"{value:.3g}{NBSP}s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}{NBSP}h {minutes:02d}{NBSP}min"
    return f"{minutes}{NBSP}min {seconds:02d}{NBSP}s"


def format_bytes(value: float) -> str:
    if not math.isfinite(value):
        return "not a number"
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.3g}{NBSP}{units[power]}"


Format = Callable[[float], str]


def ticks(low: float, high: float, count: int = 5, base: float = 10) -> list[float]:
    """Round values that cover [low, high], about `count` of them; base 1024 gives round bytes."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    step = _round_step((high - low) / count, base)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, last + 1)]


def _round_step(raw: float, base: float) -> float:
    unit = base ** math.floor(math.log(raw, base) + 1e-12)
    within = [1, 2, 2.5, 5, 10] if base == 10 else [2**k for k in range(11)]
    return next(unit * factor for factor in within if unit * factor >= raw * (1 - 1e-9))


def tick_texts(marks: Sequence[float], formatter: Format) -> list[str]:
    """Labels of an axis: numbers and percents with as many decimals as their step needs, alike for all."""
    if formatter in (format_bytes, format_seconds):
        return [formatter(mark) for mark in marks]
    if len(marks) > 1 and marks[0] > 0 and marks[-1] / marks[0] > 25:  # a log scale has no common step
        return [f"{mark:g}" for mark in marks]
    factor, unit = (100, f"{NBSP}%") if formatter is format_percent else (1, "")
    for decimals in range(9):
        texts = [f"{factor * mark:,.{decimals}f}" for mark in marks]
        if all(abs(factor * mark - float(t.replace(",", ""))) < 1e-9 for mark, t in zip(marks, texts, strict=True)):
            return [text + unit for text in texts]
    return [format_number(mark) + unit for mark in marks]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    marks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    below = [mark for mark in marks if mark <= low]
    above = [mark for mark in marks if mark >= high]
    return [mark for mark in marks if (below or marks)[-1 if below else 0] <= mark <= (above or marks[-1:])[0]]


# Lines over epochs

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Line:
    """One curve. Points without a finite value interrupt it."""

    name: str
    points: Points
    color: str = "c0"  # a class of report.css
    dashed: bool = False
    run: int | None = None  # hidden together with the run
    mark: float | None = None  # the x of a point to stand out
    key: str | None = None  # what the legend calls it; the name unless given, left out if empty


@dataclass(frozen=True)
class Scale:
    """From values to percents of the plot's box, measured from the left or the bottom."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)


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
    held = escape(json.dumps(data, separators=(",", ":")))
    marks = "".join(f'<span class="xt" style="left:{x_scale(x):.2f}%">{format_number(x)}</span>' for x in x_marks)
    return (
        f'<div class="box" data-plot="{held}">{back}'
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
    run = _run(line.run)
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


# Bars


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
        run = _run(bar.run)
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
        run = _run(group.run)
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


# Spans over time


@dataclass(frozen=True)
class Block:
    """A stretch of time in a lane: percents of the whole, how deep it is nested, and what the pointer shows."""

    left: float
    width: float
    depth: int
    name: str  # written in it where there is room
    color: str
    tip: tuple[str, ...]  # lines


def timeline(lanes: Sequence[tuple[str, Sequence[Block]]], seconds: float) -> str:
    """Lanes of nested blocks over a common time axis, one lane per worker."""
    rows = []
    for name, blocks in lanes:
        depth = 1 + max((block.depth for block in blocks), default=0)
        drawn = "".join(
            f'<i class="b {block.color}" style="left:{block.left:.3f}%;width:{block.width:.3f}%;'
            f'top:{block.depth * 22}px" {tip(*block.tip)}>'
            + (escape(block.name) if block.width > 0.7 * len(block.name) + 0.6 else "")
            + "</i>"
            for block in blocks
        )
        rows.append(
            f'<div class="lane"><div class="label">{escape(name)}</div>'
            f'<div class="blocks" style="height:{depth * 22 - 2}px">{drawn}</div></div>'
        )
    scale = Scale(0, seconds)
    marks = [mark for mark in ticks(0, seconds, 6) if mark <= seconds]
    axis = "".join(
        f'<span class="xt" style="left:{scale(mark):.2f}%">{escape(format_seconds(mark))}</span>' for mark in marks
    )
    lines = "".join(f'<i class="v" style="left:{scale(mark):.2f}%"></i>' for mark in marks)
    return (
        f'<div class="timeline"><div class="lines"><div class="inner">{lines}</div></div>{"".join(rows)}'
        f'<div class="lane axis"><div class="label"></div><div class="blocks">{axis}</div></div></div>'
    )


# Frames


def grid(marks: Sequence[float], scale: Scale, formatter: Format) -> str:
    return "".join(
        f'<i class="h" style="bottom:{scale(mark):.2f}%"></i>'
        f'<span class="yt" style="bottom:{scale(mark):.2f}%">{escape(text)}</span>'
        for mark, text in zip(marks, tick_texts(marks, formatter), strict=True)
    )


def figure(
    title: str,
    body: str,
    legend: Sequence[tuple[str, str, int | None]] = (),
    note: str = "",
    aside: str = "",
    run: int | None = None,
) -> str:
    """A plot with its title above and its legend and remark below. The body is HTML, the rest is text."""
    keys = "".join(
        f'<span class="key"{_run(of)}><i class="{escape(color)}"></i>{escape(name)}</span>'
        for name, color, of in legend
    )
    return (
        f'<figure class="plot"{_run(run)}><figcaption>{escape(title)}'
        + (f" <small>{escape(aside)}</small>" if aside else "")
        + f"</figcaption>{body}"
        + (f'<div class="legend">{keys}</div>' if keys else "")
        + (f'<p class="note">{escape(note)}</p>' if note else "")
        + "</figure>"
    )


def _run(run: int | None) -> str:
    """The attribute by which a run's name in the header shows and hides what belongs to it."""
    return "" if run is None else f' data-run="{run}"'


def tip(*lines: str) -> str:
    """The attribute that holds what the pointer shows: the first line is its heading."""
    return f'data-tip="{escape(chr(10).join(line for line in lines if line))}"'


def missing(title: str, why: str) -> str:
    return f'<figure class="plot none"><figcaption>{escape(title)}</figcaption><p>{escape(why)}</p></figure>'
