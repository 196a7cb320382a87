"""Messages in pairwise rounds."""

import threading
import time
import weakref
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch import Tensor

from weft.comm.pairwise import DeferredWork, PairwiseRound, PairwiseSender

LIMIT = timedelta(seconds=10)


def begin(message: Tensor) -> DeferredWork:
    return DeferredWork(lambda _: None)


def test_messages_are_let_go_once_they_are_through() -> None:
    """The thread waits for the next ones, perhaps for ever: the last ones must not lie in memory until then."""
    sent, received = torch.zeros(8), torch.zeros(8)
    held = [weakref.ref(sent), weakref.ref(received)]
    round = PairwiseRound((1, 1), [partial(begin, received)], [partial(begin, sent)])
    sender = PairwiseSender(LIMIT)
    sender.start([round])
    round.wait_received(LIMIT)
    round.wait_sent(LIMIT)
    passed = weakref.ref(round)
    del sent, received, round
    until = time.monotonic() + LIMIT.total_seconds()
    while passed() is not None and time.monotonic() < until:  # it says that they are through before it returns
        time.sleep(0.01)
    assert passed() is None
    assert all(message() is None for message in held)


class Message:
    """Begins when told to, and ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.through = threading.Event(), threading.Event()
        self.error: RuntimeError | None = None

    def __call__(self) -> DeferredWork:
        self.begun.set()
        return DeferredWork(self._wait)

    def _wait(self, timeout: timedelta) -> None:
        assert self.through.wait(timeout.total_seconds())
        if self.error is not None:
            raise self.error


def test_messages_for_one_pair_follow_without_a_pause_and_others_wait() -> None:
    first, second, third = Message(), Message(), Message()
    sender = PairwiseSender(LIMIT)
    waiting = [
        PairwiseRound((1, 3), [], [first]),
        PairwiseRound((1, 3), [], [second]),
        PairwiseRound((2, 2), [], [third]),
    ]
    sender.start(waiting[:1])
    assert first.begun.wait(LIMIT.total_seconds())
    sender.start(waiting[1:])
    assert second.begun.is_set(), "it is for the pair that is running"
    first.through.set()
    waiting[0].wait_sent(LIMIT)
    assert not third.begun.is_set(), "the pair before has a message under way"
    second.through.set()
    assert third.begun.wait(LIMIT.total_seconds())
    third.through.set()
    waiting[2].wait_sent(LIMIT)


def test_when_a_message_fails_so_does_what_was_to_follow() -> None:
    lost, behind, other = Message(), Message(), Message()
    sender = PairwiseSender(LIMIT)
    waiting = [
        PairwiseRound((1, 3), [lost], []),
        PairwiseRound((1, 3), [behind], []),
        PairwiseRound((2, 2), [other], []),
    ]
    sender.start(waiting)
    lost.error = RuntimeError("connection closed")
    lost.through.set()
    for round in waiting:
        with pytest.raises(RuntimeError, match="connection closed"):
            round.wait_received(LIMIT)
    assert not other.begun.is_set()
