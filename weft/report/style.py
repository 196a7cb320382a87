"""What the sections of a report share: colors and names of runs, headings, grids, and tables by run."""

from collections.abc import Mapping, Sequence

from weft.report.rundata import RunData
from weft.report.text import (
    Format,
    escape,
    format_number,
    format_percent,
)
from weft.training.metrics import NUMBER_METRICS

NOTHING = "\N{EN DASH}"

_WORDS = {
    "roc_auc": "ROC AUC",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "mrr": "MRR",
    "ids": "vertex ids",
    "cut_fraction": "cut edges",
    "train_balance": "training vertex balance",
    "exchange_wait": "waiting for rows",
    "assign": "choosing bits of rows",
    "graph": "gathering and scattering",
    "wait": "waiting for functions and servers",
    "rest": "own tasks, messages, weights",
    "all_reduce": "gradient all-reduce",
    "plan": "planning minibatches",
}


def color(run: int) -> str:
    return f"c{run % 8}"


def words(name: str) -> str:
    """A key as a person would write it."""
    return _WORDS.get(name, name.replace("_", " "))


def tag(run: int, runs: Sequence[RunData]) -> int | None:
    return run if len(runs) > 1 else None


def metric_text(run: RunData, value: float | None) -> str:
    return NOTHING if value is None else metric_format(run.metric)(value)


def metric_format(metric: str) -> Format:
    if metric in NUMBER_METRICS:
        return format_number
    return format_percent if metric == "accuracy" else lambda value: f"{value:.3f}"


def section(title: str, lead: str, *parts: str) -> str:
    body = "".join(parts)
    return f"<section><h2>{escape(title)}</h2><p>{escape(lead)}</p>{body}</section>" if body else ""


def in_grid(*figures: str) -> str:
    return f'<div class="grid">{"".join(figures)}</div>' if any(figures) else ""


def curve_name(run: RunData, runs: Sequence[RunData], what: str) -> str:
    """The name of a curve: the run where there are several, what it shows where there is one."""
    return what if len(runs) == 1 else run.name


def run_column(index: int, runs: Sequence[RunData]) -> str:
    return f' data-run="{index}"' if len(runs) > 1 else ""


def table_by_run(rows: Mapping[str, Mapping[int, str]], runs: Sequence[RunData]) -> str:
    """Names of rows to what each run, by its number, has there; runs are named where there are several."""
    shown = next(iter(rows.values()), {})
    heads = "".join(
        f'<th class="n"{run_column(i, runs)}><i class="swatch {color(i)}"></i> {escape(runs[i].name)}</th>'
        for i in shown
    )
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="n"{run_column(i, runs)}>{escape(cells[i])}</td>' for i in shown)
        + "</tr>"
        for name, cells in rows.items()
    )
    head = f"<thead><tr><th></th>{heads}</tr></thead>" if len(runs) > 1 else ""
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
