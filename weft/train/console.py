"""What a person sees while a run trains."""

from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Within an epoch, after so many of its minibatches."""
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch - 1 + step / steps, state=f"minibatch {step}/{steps}")

    def update(self, record: dict[str, Any]) -> None:
        if not self.show:
            return
        epoch, state = record["epoch"], _state(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch, state=state)
        elif epoch == 1 or epoch == self.epochs or epoch % max(1, self.epochs // LINES_WITHOUT_TERMINAL) == 0:
            self.terminal.print(f"epoch {epoch}/{self.epochs}  {state}", highlight=False)


def _state(record: dict[str, Any]) -> str:
    parts = [f"loss {record['train_loss']:.4f}"]
    parts += [f"{name.replace('_', ' ')} {value:.4f}" for name, value in record.items() if name.startswith("val_")]
    parts.append(f"{record['seconds']:.3f} s/epoch")
    return "  ".join(parts)
