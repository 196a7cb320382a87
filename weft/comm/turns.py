"""Large messages in turns: a worker sends to the next one, then to the one after it, as messages of each turn arrive.

Where everybody sends to everybody at once, several streams meet at every receiver's link, lose packets there, and leave
links idle while they recover. In turns each link carries one stream in either direction. A turn ends when both its
messages are through, so nobody runs ahead; turns wait only for earlier ones, so no circle of workers can wait for each
other, whatever each of them decides.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

WORTHWHILE_BYTES = 1 << 16  # to all peers, or from all: less is through before turns could order it


def partners(worker: int, num_workers: int) -> list[tuple[int, int]]:
    """Of each turn, whom this worker sends to and whom it receives from."""
    return [((worker + ahead) % num_workers, (worker - ahead) % num_workers) for ahead in range(1, num_workers)]


class Waitable(NamedTuple):
    """What a message that takes its turn is waited for by, like torch's own works."""

    wait: Callable[[timedelta], None]


class Turn:
    """A message to one peer and one from another."""

    def __init__(self, receives: Sequence[Callable[[], Any]], sends: Sequence[Callable[[], Any]]) -> None:
        self.receives, self.sends = receives, sends
        self._sent, self._received = threading.Event(), threading.Event()
        self.error: RuntimeError | None = None

    def take(self, timeout: timedelta) -> None:
        try:
            # Gloo sends nothing before the other side receives, so a turn's messages wait for both ends' turn.
            arriving, leaving = [begin() for begin in self.receives], [begin() for begin in self.sends]
            self.receives = self.sends = ()  # they hold the messages, which others hold for as long as they want
            for work in arriving:
                work.wait(timeout)
            self._received.set()
            for work in leaving:
                work.wait(timeout)
            self._sent.set()
        except RuntimeError as error:
            self.fail(error)

    def fail(self, error: RuntimeError) -> None:
        self.error = error
        self._received.set()
        self._sent.set()

    def wait_received(self, timeout: timedelta) -> None:
        self._wait(self._received, timeout)

    def wait_sent(self, timeout: timedelta) -> None:
        self._wait(self._sent, timeout)

    def _wait(self, event: threading.Event, timeout: timedelta) -> None:
        if not event.wait(timeout.total_seconds()):
            raise RuntimeError("timed out")
        if self.error is not None:
            raise self.error


class Turns:
    """One thread that sends what it is handed, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[list[Turn], timedelta]] = queue.SimpleQueue()
        # A daemon: a process that gives up must not wait for messages that never come.
        threading.Thread(target=self._run, name="turns", daemon=True).start()

    def start(self, turns: list[Turn], timeout: timedelta) -> None:
        self._queue.put((turns, timeout))

    def _run(self) -> None:
        while True:
            self._take(*self._queue.get())

    @staticmethod
    def _take(turns: list[Turn], timeout: timedelta) -> None:
        """All turns of a round. A call of its own: what it was handed is let go when it returns, not with the next."""
        for turn in turns:
            turn.take(timeout)
            if turn.error is not None:
                for other in turns:
                    other.fail(turn.error)
                break
