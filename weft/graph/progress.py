"""A progress bar for work that turns out to be long; nothing shows in the first second or without a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PATIENCE_SECONDS = 1.0
terminal = Console(stderr=True)  # one for all that moves on it: several consoles would draw over each other


@contextmanager
def progress(what: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Yields `advance(amount)`; `total` is in the same unit (bytes, rows, ...), None if unknown."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=terminal,
        transient=True,
    )
    task = bar.add_task(what, total=total)
    begin, started, refused = time.monotonic(), False, False

    def advance(amount: float) -> None:
        nonlocal started, refused
        bar.advance(task, amount)
        if not started and not refused and time.monotonic() - begin > PATIENCE_SECONDS:
            try:
                bar.start()
                started = True
            except LiveError:  # another display owns the terminal
                refused = True

    try:
        yield advance
    finally:
        if started:
            bar.stop()
