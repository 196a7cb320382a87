"""Messages that take their turn."""

import time
import weakref
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from weft.comm.turns import Turn, Turns, Waitable

LIMIT = timedelta(seconds=10)


def begin(message: Tensor) -> Waitable:
    return Waitable(lambda _: None)


def test_messages_are_let_go_once_they_are_through() -> None:
    """The thread waits for the next ones, perhaps for ever: the last ones must not lie in memory until then."""
    sent, received = torch.zeros(8), torch.zeros(8)
    held = [weakref.ref(sent), weakref.ref(received)]
    turn = Turn((1, 1), [partial(begin, received)], [partial(begin, sent)])
    turns = Turns(LIMIT)
    turns.start([turn])
    turn.wait_received(LIMIT)
    turn.wait_sent(LIMIT)
    passed = weakref.ref(turn)
    del sent, received, turn
    until = time.monotonic() + LIMIT.total_seconds()
    while passed() is not None and time.monotonic() < until:  # it says that they are through before it returns
        time.sleep(0.01)
    assert passed() is None
    assert all(message() is None for message in held)
