"""Large messages in turns: a worker sends to the next one, then to the one after it, as messages of each turn arrive.

Where everybody sends to everybody at once, several streams meet at every receiver's link, lose packets there, and leave
links idle while they recover. In turns each link carries one stream in either direction. A turn ends when its messages
are through both ways, so nobody runs ahead; turns wait only for earlier ones, so no circle of workers can wait for each
other, whatever each of them decides.
"""

import threading
from collections import deque
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

    def __init__(
        self, pair: tuple[int, int], receives: Sequence[Callable[[], Any]], sends: Sequence[Callable[[], Any]]
    ) -> None:
        """`pair`: the two peers; the others begin a part of a message each."""
        self.pair, self.receives, self.sends = pair, receives, sends
        self._arriving: list[Any] = []
        self._leaving: list[Any] = []
        self._sent, self._received = threading.Event(), threading.Event()
        self.error: RuntimeError | None = None

    def begin(self) -> None:
        try:
            # Gloo sends nothing before the other side receives, so a turn's messages wait for both ends' turn.
            self._arriving, self._leaving = [begin() for begin in self.receives], [begin() for begin in self.sends]
            self.receives = self.sends = ()  # they hold the messages, which others hold for as long as they want
        except RuntimeError as error:
            self.fail(error)

    def end(self, timeout: timedelta) -> None:
        try:
            for work in self._arriving:
                work.wait(timeout)
            self._received.set()
            for work in self._leaving:
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
    """Sends what it is handed, in order: one pair of peers after another, and all that is there for a pair at once."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._waiting: deque[Turn] = deque()
        self._begun: deque[Turn] = deque()
        self._pair: tuple[int, int] | None = None  # whose turn it is
        # A daemon: a process that gives up must not wait for messages that never come.
        threading.Thread(target=self._run, name="turns", daemon=True).start()

    def start(self, turns: list[Turn]) -> None:
        with self._changed:
            self._waiting.extend(turns)
            if self._pair is not None:
                self._begin()  # what is for the pair at work follows on what it sends already, without a pause
            self._changed.notify()

    def _begin(self) -> None:
        while self._waiting and self._waiting[0].pair == self._pair:
            turn = self._waiting.popleft()
            turn.begin()
            self._begun.append(turn)

    def _run(self) -> None:
        while True:
            self._end_one()

    def _end_one(self) -> None:
        """The next message's end. A call of its own: what it has is let go when it returns, not with the next."""
        with self._changed:
            if not self._begun:
                self._pair = None
                self._changed.wait_for(lambda: bool(self._waiting))
                self._pair = self._waiting[0].pair
                self._begin()
            turn = self._begun.popleft()
        turn.end(self._timeout)
        if turn.error is not None:
            with self._changed:
                for other in (*self._begun, *self._waiting):
                    other.fail(turn.error)
                self._begun.clear()
                self._waiting.clear()
