"""Lanes of nested blocks over a common time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.report.figure import Scale, tip
from weft.report.text import (
    escape,
    format_seconds,
    ticks,
)


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
