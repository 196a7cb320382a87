"""Peers of a graph server that flood it, say again what they recorded, or alter what others say, while a run goes on.

Every round is a run whose tasks a worker does at the end of a relay. Whatever happens between the two and beside them,
the run ends with the weights of a run that needs no worker, and leaves no connection open.
"""

import functools
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch

from tests.chaos.counting import SEED, Round, check, rounds
from tests.chaos.runs import ENDS_SECONDS
from tests.launch.launching import wait_until
from tests.serverless.cases import CASES, pipelined, some_shards
from tests.serverless.peers import FLOODS, Relay, RogueWorker, flood, worker
from weft.comm import Communicator
from weft.serverless.broker import MAX_REFUSALS
from weft.serverless.pool import PoolInvoker
from weft.serverless.settings import ExecutorConfig
from weft_function.address import parse_address
from weft_function.session import new_key
from weft_function.wire import Message

SHARE = 0.2
EPOCHS = 8
ALTERATIONS = 5  # of a round: a task may be lost eight times
PIECES = 120  # fewer than are received in any run, so that all alterations come in time
HERE = ExecutorConfig(intervals=4)
IN_A_POOL = ExecutorConfig(name="pool", intervals=4, workers=1, placement="functions")
KEY = new_key()


class Tampering(Relay):
    """Reflects, repeats or alters some of the pieces that it receives, or cuts the connection instead."""

    def __init__(self, address: str, deed: str, random: random.Random) -> None:
        self._deed, self._random, self._lock = deed, random, threading.Lock()
        self._pieces, self._wanted, self.done = 0, set(random.sample(range(1, PIECES + 1), ALTERATIONS)), 0
        super().__init__(address)

    def _pass_on(self, data: bytes, source: socket.socket, sink: socket.socket) -> None:
        with self._lock:
            self._pieces += 1
            acts = self._pieces in self._wanted
            self.done += acts
            at = self._random.randrange(8 * len(data))
        if acts and self._deed == "cut":
            self.cut()
        elif acts and self._deed == "altered":
            sink.sendall(data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :])
        else:
            if acts and self._deed == "reflected":
                source.sendall(data)
            sink.sendall(data * 2 if acts and self._deed == "repeated" else data)


@contextmanager
def _in_a_thread(act: Callable[[], None]) -> Iterator[None]:
    """Does something again and again, while the block lasts."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.05):
            act()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


def _say_again(address: str, relay: Relay, random: random.Random) -> None:
    """All that a worker has said so far, or its beginning, to the same server."""
    said = bytes(random.choice(relay.recorded))
    with suppress(OSError), socket.create_connection(parse_address(address), timeout=30) as sock:
        sock.sendall(said[: random.choice([len(said), random.randint(1, len(said))])])
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def _wrong_answers(pool: PoolInvoker, random: random.Random) -> Callable[[], None]:
    """A worker that has the key and answers a few tasks, none of them rightly; then it leaves."""
    rogue = RogueWorker(pool.address, KEY)
    rogue.send(Message("register", {"worker": "rogue"}))
    wait_until(lambda: pool.usage().workers == 2)
    answered = 0

    def answer() -> None:
        nonlocal answered
        task = rogue.receive(0.05) if answered < MAX_REFUSALS else None
        if task is not None and task.kind == "task":
            answered += 1
            attempt = task.fields["attempt"]
            rogue.send(random.choice([
                task,
                Message("rows", {"attempt": attempt}),
                Message("response", {"attempt": attempt + 1, "seconds": 0.1}),
                Message("response", {"attempt": attempt, "seconds": 0.1}),
                Message("response", {"attempt": attempt, "seconds": -1}, task.tensors),
            ]))  # fmt: skip
        if answered == MAX_REFUSALS:
            rogue.close()

    return answer


def _begin(deed: str, pool: PoolInvoker, opened: ExitStack, random_: random.Random) -> Callable[[], bool]:
    """Starts a worker, and the deed; whether that was done is known at the end."""
    relay: Relay = Tampering(pool.address, deed, random_) if deed in TAMPERING else Relay(pool.address)
    opened.callback(relay.close)
    opened.enter_context(worker(relay.address, KEY))
    if isinstance(relay, Tampering):
        return lambda: relay.done == ALTERATIONS
    wait_until(lambda: pool.usage().workers == 1)
    if deed == "flooded":
        opened.enter_context(flood(pool.address, random_.choice(list(FLOODS))))
        wait_until(lambda: pool.usage().refused > 0 or bool(pool._listener.handshakes))
    elif deed == "said again":
        _say_again(pool.address, relay, random_)
        opened.enter_context(_in_a_thread(lambda: _say_again(pool.address, relay, random_)))
    else:
        opened.enter_context(_in_a_thread(_wrong_answers(pool, random_)))
        return lambda: pool.usage().refused > 0
    return lambda: pool.usage().refused > 0 or deed == "flooded"


TAMPERING = ("reflected", "repeated", "altered", "cut")
DEEDS = (*TAMPERING, "said again", "flooded", "answered wrongly")


def _train(config: ExecutorConfig, make: Any = None) -> dict[str, Any]:
    return pipelined(Communicator.alone(), some_shards(1), CASES["gcn-three"], EPOCHS, config, make)


@functools.cache
def _undisturbed() -> dict[str, Any]:
    return _train(HERE)


def _disturbed(number: int) -> Round:
    random_, deed = random.Random(f"hub {SEED} {number}"), DEEDS[number % len(DEEDS)]
    one = Round("hub", deed, str(number))
    found: list[dict[str, Any] | BaseException] = []
    before = len(os.listdir("/proc/self/fd"))

    def run() -> None:
        with ExitStack() as opened:
            done: list[Callable[[], bool]] = []

            def make(config: ExecutorConfig, trust: Any) -> PoolInvoker:
                pool = PoolInvoker(0, key=KEY, deadline_seconds=20)
                try:
                    done.append(_begin(deed, pool, opened, random_))
                except BaseException:
                    pool.close()  # else its worker would stay
                    raise
                return pool

            try:
                found.append(_train(IN_A_POOL, make))
                one.hit = "while it trained" if done[0]() else None
            except BaseException as error:
                found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ENDS_SECONDS)
    _judge(one, thread, found, before)
    return one


def _judge(one: Round, thread: threading.Thread, found: list[dict[str, Any] | BaseException], before: int) -> None:
    wanted = _undisturbed()
    if thread.is_alive():
        one.fail("hang", f"no end within {ENDS_SECONDS:g} s")
        return
    (ending,) = found
    if isinstance(ending, BaseException):
        one.fail("failed", f"{type(ending).__name__}: {ending}")
    elif ending["losses"] != wanted["losses"] or not all(
        torch.equal(weight, wanted["weights"][name]) for name, weight in ending["weights"].items()
    ):
        one.fail("weights", "other weights than those of a run without workers")
    try:
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, seconds=30)
    except AssertionError:
        one.fail("descriptors", f"{len(os.listdir('/proc/self/fd'))} are open, {before} were before")


@pytest.mark.timeout(max(1200, 60 * rounds(len(DEEDS), SHARE)))
def test_whatever_others_say_to_a_server_its_run_ends_rightly() -> None:
    _undisturbed()
    played = [_disturbed(number) for number in range(rounds(len(DEEDS), SHARE))]
    check(played)
    assert all(one.hit for one in played)
