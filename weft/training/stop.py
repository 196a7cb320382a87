"""Requests to stop a run: SIGTERM and SIGINT let the epoch end, so that a checkpoint can be written."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = "\nstopping after this epoch; Ctrl-C again ends the run at once"


class StopRequest:
    """Whether this worker was asked to stop, and whether all workers have agreed to stop after this epoch."""

    def __init__(self) -> None:
        self.asked = self.agreed = False

    def handle(self, number: int, frame: object) -> None:
        """The signal handler. A second Ctrl-C does not wait for the end of the epoch."""
        if number == signal.SIGINT:
            if self.asked:
                raise KeyboardInterrupt
            print(STOPPING, file=sys.stderr, flush=True)
        self.asked = True


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """In the block SIGTERM and SIGINT set `asked`; the handlers of before are restored at its end.

    Outside the main thread Python allows no signal handlers, and the request is never made.
    """
    request = StopRequest()
    before: dict[int, Any] = {}
    try:
        try:
            for caught in (signal.SIGTERM, signal.SIGINT):
                before[caught] = signal.signal(caught, request.handle)
        except ValueError:  # not the main thread
            pass
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
