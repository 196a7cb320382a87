"""Large messages in pairwise rounds.

In round k a worker sends to the k-th worker after it and receives from the k-th worker before it.

Where all workers send to all others at once, several streams meet at every receiver's link, lose packets there, and
leave links idle while they recover. In pairwise rounds each link carries one stream in either direction. A round ends
when both of its messages have arrived, so that no worker runs ahead. Rounds wait only for earlier ones, so that workers
cannot wait for each other in a circle.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

SMALLEST_BYTES = 1 << 16  # to all peers, or from all: fewer have arrived before rounds could order them


def partners(worker: int, num_workers: int) -> list[tuple[int, int]]:
    """Of each round: the worker that this one sends to, and the worker that it receives from."""
    return [((worker + ahead) % num_workers, (worker - ahead) % num_workers) for ahead in range(1, num_workers)]


class DeferredWork(NamedTuple):
    """Stands for torch's work of a message whose round has not begun."""

    wait: Callable[[timedelta], None]


class PairwiseRound:
    """A message to one peer and one from another."""

    def __init__(
        self, pair: tuple[int, int], receives: Sequence[Callable[[], Any]], sends: Sequence[Callable[[], Any]]
    ) -> None:
        """`pair`: the receiver and the sender; each of `receives` and `sends` starts a part of a message."""
        self.pair, self.receives, self.sends = pair, receives, sends
        self._arriving: list[Any] = []
        self._leaving: list[Any] = []
        self._sent, self._received = threading.Event(), threading.Event()
        self.error: RuntimeError | None = None

    def begin(self) -> None:
        try:
            # Gloo sends nothing before the other side receives: a message waits until both ends have begun its round.
            self._arriving, self._leaving = [begin() for begin in self.receives], [begin() for begin in self.sends]
            self.receives = self.sends = ()  # they hold the messages, which may be freed before the round is
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


class PairwiseSender:
    """A thread that runs rounds in order: one pair of peers at a time, and all rounds that wait for a pair at once."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._waiting: deque[PairwiseRound] = deque()
        self._begun: deque[PairwiseRound] = deque()
        self._pair: tuple[int, int] | None = None  # of the rounds that are running
        # A daemon: a process that gives up must not wait for messages that never come.
        threading.Thread(target=self._run, name="pairwise", daemon=True).start()

    def start(self, rounds: list[PairwiseRound]) -> None:
        with self._changed:
            self._waiting.extend(rounds)
            if self._pair is not None:
                self._begin()  # more rounds of the running pair follow without a pause
            self._changed.notify()

    def _begin(self) -> None:
        while self._waiting and self._waiting[0].pair == self._pair:
            round = self._waiting.popleft()
            round.begin()
            self._begun.append(round)

    def _run(self) -> None:
        while True:
            self._end_one()

    def _end_one(self) -> None:
        """Waits for the end of a round. A function of its own, so that the round is freed when it returns."""
        with self._changed:
            if not self._begun:
                self._pair = None
                self._changed.wait_for(lambda: bool(self._waiting))
                self._pair = self._waiting[0].pair
                self._begin()
            round = self._begun.popleft()
        round.end(self._timeout)
        if round.error is not None:
            with self._changed:
                for other in (*self._begun, *self._waiting):
                    other.fail(round.error)
                self._begun.clear()
                self._waiting.clear()
