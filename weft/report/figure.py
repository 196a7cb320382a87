"""The frame of a plot: title, grid lines, legend, remark, and the attributes that the page's script reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.report.text import (
    Format,
    escape,
    tick_texts,
)


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
        f'<span class="key"{run_attribute(of)}><i class="{escape(color)}"></i>{escape(name)}</span>'
        for name, color, of in legend
    )
    return (
        f'<figure class="plot"{run_attribute(run)}><figcaption>{escape(title)}'
        + (f" <small>{escape(aside)}</small>" if aside else "")
        + f"</figcaption>{body}"
        + (f'<div class="legend">{keys}</div>' if keys else "")
        + (f'<p class="note">{escape(note)}</p>' if note else "")
        + "</figure>"
    )


def run_attribute(run: int | None) -> str:
    """The attribute by which a run's button in the header shows and hides what belongs to the run."""
    return "" if run is None else f' data-run="{run}"'


def tip(*lines: str) -> str:
    """The attribute that holds what the pointer shows: the first line is its heading."""
    return f'data-tip="{escape(chr(10).join(line for line in lines if line))}"'


def missing(title: str, why: str) -> str:
    return f'<figure class="plot none"><figcaption>{escape(title)}</figcaption><p>{escape(why)}</p></figure>'
