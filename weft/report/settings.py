"""The section of a report about settings: all of one run, or those that differ between several."""

from collections.abc import Sequence

from weft.report.rundata import RunData
from weft.report.style import (
    NOTHING,
    color,
    run_column,
    section,
)
from weft.report.text import (
    escape,
)
from weft.training.plain import flatten


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
    tags = [run_column(i, runs) for i in range(len(runs))]
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
