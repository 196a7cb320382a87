"""What a person sees while a run trains, and at its end."""

from pathlib import Path
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

LINES_WITHOUT_TERMINAL = 10


class Console:
    """A progress bar on a terminal, a few plain lines elsewhere, nothing on workers that do not show."""

    def __init__(self, epochs: int, show: bool = True) -> None:
        self.epochs, self.show = epochs, show
        self.terminal = Terminal(stderr=True)
        self._bar: Progress | None = None

    def __enter__(self) -> "Console":
        if self.show and self.terminal.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self.terminal,
            )
            self._bar.start()
            self._task = self._bar.add_task("epochs", total=self.epochs, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, record: dict[str, Any]) -> None:
        if not self.show:
            return
        epoch, state = record["epoch"], _state(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, state=state)
        elif epoch == 1 or epoch == self.epochs or epoch % max(1, self.epochs // LINES_WITHOUT_TERMINAL) == 0:
            self.terminal.print(f"epoch {epoch}/{self.epochs}  {state}", highlight=False)

    def finish(self, summary: dict[str, Any], folder: Path) -> None:
        """The result as a table."""
        if not self.show:
            return
        table = Table(title=f"{summary['model']} on {summary['graph']['name']}", show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for name, value in summary_rows(summary):
            table.add_row(name, value)
        Terminal().print(table)
        Terminal().print(f"run folder  {folder}", highlight=False, soft_wrap=True)


def _state(record: dict[str, Any]) -> str:
    parts = [f"loss {record['train_loss']:.4f}"]
    parts += [f"{name.replace('_', ' ')} {value:.4f}" for name, value in record.items() if name.startswith("val_")]
    parts.append(f"{record['seconds']:.3f} s/epoch")
    return "  ".join(parts)


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    metric, wire, times = summary["metric"], summary["wire_bytes"], summary["epoch_seconds"]
    facts = [("status", summary["status"])]
    for split in ("train", "val", "test"):
        value = summary.get(f"{split}_{metric}")
        if value is not None:
            facts.append((f"{split} {metric.replace('_', ' ')}", f"{100 * value:.2f} %"))
    facts.append(("best epoch", f"{summary['best_epoch']} of {summary['epochs']}"))
    facts.append(("epoch time", f"{times['median']:.3f} s (median), {times['total']:.1f} s in all"))
    facts.append(("workers", str(summary["workers"])))
    facts.append(("on the wire per epoch", _size(wire["per_epoch"])))
    facts.append(("peak memory per worker", _size(max(summary["peak_rss_bytes"]))))
    return facts


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
