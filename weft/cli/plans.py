"""What `weft plan` shows: plans, the command that trains by the best one, and places where products could be done."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from weft.cli.show import dollars
from weft.disk.space import size

PLANS_SHOWN = 16
ALL_COLUMNS_WIDTH = 115
EPOCHS_PRICED = 1000  # one costs too little to be read

Plan = Mapping[str, Any]

_TEXTS = ("strategy", "plan", "place")  # columns of words
# What decides, which 80 characters have room for; and what explains it
_COLUMNS: dict[str, Callable[[Plan], str]] = {
    "seconds": lambda plan: f"{plan['seconds']:.3f}",
    "memory": lambda plan: size(plan["memory_bytes"]) + ("" if plan["fits"] else ", too much"),
    "MB sent": lambda plan: f"{plan['megabytes']:,.1f}",
    "rows": lambda plan: f"{plan['rows']:,.0f}",
}
_MORE_COLUMNS: dict[str, Callable[[Plan], str]] = {
    "of others": lambda plan: f"{plan['remote']:,.0f}",
    "edges": lambda plan: f"{plan['edges']:,.0f}",
    "edge balance": lambda plan: f"{plan['edge_balance']:.2f}",
    "waits": lambda plan: f"{plan['rounds']:.1f}",
}


def print_plans(found: Mapping[str, Any]) -> None:
    """A line for each plan, the best one marked, and the command that trains by it."""
    console = Console()
    columns = _COLUMNS if console.width < ALL_COLUMNS_WIDTH else _COLUMNS | _MORE_COLUMNS
    title = "plans, by the modelled seconds of an epoch; MB of an epoch, and what a step reads"
    table = _table(title, "strategy", "plan", *columns)
    ranked = sorted(found["plans"], key=lambda plan: (not plan["fits"], float(plan["seconds"])))
    for plan in ranked[:PLANS_SHOWN]:
        best = plan["label"] == found["best"]
        cells: list[RenderableType] = [
            Text(plan["strategy"]),
            Text(plan["label"]),
            *(text(plan) for text in columns.values()),
        ]
        table.add_row(*cells, style="bold green" if best else "" if plan["fits"] else "dim")
    console.print(table)
    if len(ranked) > PLANS_SHOWN:
        console.print(f"{len(ranked) - PLANS_SHOWN} slower ones are left out (--json has all)", highlight=False)
    links = f"   (links of {found['megabits']:,.0f} Mb/s, {1e3 * found['latency_seconds']:.2f} ms)"
    console.print(f"best: {found['best']}{links if math.isfinite(found['megabits']) else ''}", highlight=False)
    console.print(found["command"], highlight=False, markup=False, soft_wrap=True)


def train_command(
    found: Mapping[str, Any], config: Path | None, settings: Sequence[str], trust: bool, **options: object
) -> str:
    """The command that trains by the best plan, with what `weft plan` was given."""
    best = next(plan for plan in found["plans"] if plan["label"] == found["best"])
    words = ["weft", "train", *([] if config is None else [str(config)])]
    for name, value in (options | {"strategy": best["strategy"]}).items():
        words += [] if value is None else [f"--{name}", str(value)]
    chosen = [f"{section}.{key}={value}" for section, keys in best["settings"].items() for key, value in keys.items()]
    for setting in (*settings, *chosen):
        words += ["--set", setting]
    return shlex.join([*words, *["--trust"] * trust])


def print_places(found: Mapping[str, Any]) -> None:
    """A line for each place where products could be done."""
    places: Sequence[Mapping[str, Any]] = found["options"]
    title = (
        f"where products could be done: modelled, full graph; dollars for {EPOCHS_PRICED:,} epochs, by the prices of "
        f"{found['prices']}; value: 1 / (time x cost), of {places[0]['label']} 1"
    )
    names = ("functions a server", "seconds an epoch", "$ servers", "$ functions", "$ total", "value")
    table = _table(title, "place", *names)
    best, first = max(float(place["cost_value"]) for place in places), float(places[0]["cost_value"])
    for place in places:
        functions = place["cost_function_time"] + place["cost_requests"] + place["cost_init"]
        amounts = (place["cost_graph_servers"], functions, place["cost_total"])
        cells = [
            str(place["functions"] or ""),
            f"{place['seconds']:.3f}",
            *(dollars(EPOCHS_PRICED * amount) for amount in amounts),
            f"{place['cost_value'] / first:.3g}",
        ]
        table.add_row(Text(place["label"]), *cells, style="bold green" if place["cost_value"] == best else "")
    Console().print(table)


def _table(title: str, *names: str) -> Table:
    """A table that wraps what is too long instead of cutting it."""
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "strategy")
    return table
