"""The progress of training in the terminal."""

from collections.abc import Callable
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

LINES_WITHOUT_TERMINAL = 10
LONGEST_BAR, SHORTEST_BAR = 40, 8
TIME_WIDTH = 8  # 10:00:00
GAPS = 3  # characters between the columns


class Console:
    """A progress bar on a terminal, a few plain lines elsewhere, nothing on workers that do not show."""

    def __init__(self, epochs: int, show: bool = True, terminal: Terminal | None = None) -> None:
        self.epochs, self.show = epochs, show
        self.terminal = terminal or Terminal(stderr=True)
        self._bar: Progress | None = None
        self._count = f"epoch 0/{epochs}"
        self._values: dict[str, Any] = {}  # the newest ones, also of what is not measured in every epoch

    def __enter__(self) -> "Console":
        if self.show and self.terminal.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
                BarColumn(LONGEST_BAR),  # the only column that gives way
                _Numbers(self._fitting),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True)),
                console=self.terminal,
            )
            self._bar.start()
            self._task = self._bar.add_task("epochs", total=self.epochs, count=self._count)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Shows the progress within an epoch, by minibatches, beside the numbers of the epochs before."""
        self._advance(f"epoch {epoch}/{self.epochs}, {step}/{steps}", epoch - 1 + step / steps)

    def update(self, record: dict[str, Any]) -> None:
        if not self.show:
            return
        epoch = record["epoch"]
        self._values |= record
        if self._bar is not None:
            self._advance(f"epoch {epoch}/{self.epochs}", epoch)
        elif epoch == 1 or epoch == self.epochs or epoch % max(1, self.epochs // LINES_WITHOUT_TERMINAL) == 0:
            self.terminal.print(f"epoch {epoch}/{self.epochs}  {'  '.join(_numbers(self._values))}", highlight=False)

    def _advance(self, count: str, completed: float) -> None:
        self._count = count
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, count=count)

    def _fitting(self) -> str:
        """As many numbers as fit beside the shortest bar, the loss and the metric before others."""
        room = self.terminal.width - len(self._count) - SHORTEST_BAR - TIME_WIDTH - GAPS
        numbers = _numbers(self._values)
        while len(numbers) > 1 and len("  ".join(numbers)) > room:
            numbers.pop()
        return "  ".join(numbers)


class _Numbers(ProgressColumn):
    """A column of a text that is asked for whenever the bar is drawn, and is never cut."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text())


def _numbers(values: dict[str, Any]) -> list[str]:
    """The numbers of an epoch, those that one looks for first at the front."""
    if not values:
        return []
    measured = sorted((name for name in values if name.startswith("val_")), key=lambda name: name == "val_loss")
    metrics = [f"{name.replace('_', ' ')} {values[name]:.4f}" for name in measured]
    return [f"loss {values['train_loss']:.4f}", *metrics, f"{values['seconds']:.3f} s/epoch"]
