"""Numbers as people read them, round values for axes, and text that is safe in HTML."""

import html
import math
from collections.abc import Callable, Sequence

NBSP = "\N{NO-BREAK SPACE}"

Format = Callable[[float], str]


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


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
