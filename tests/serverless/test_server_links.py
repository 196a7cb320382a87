"""Links between graph servers: messages arrive in order, and a lost link is reported on both sides."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.serverless.peers import Relay, wait_for
from weft.errors import WorkerLost
from weft.serverless.server_links import LinkThread
from weft_function.address import parse_address
from weft_function.connection import connect
from weft_function.session import derive_key, new_key
from weft_function.wire import Message, Refused

KEY = new_key()
Heard = list[Message | WorkerLost]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[LinkThread], list[Heard]]]:
    monkeypatch.setattr("weft.serverless.server_links.LINGER_SECONDS", 0.2)  # they are closed one after another here
    heard: list[Heard] = [[], [], []]
    lines = [LinkThread(server, KEY, 20.0, heard[server].append) for server in range(3)]
    yield lines, heard
    for one in lines:
        one.close()


def rows(number: int) -> Message:
    return Message("rows", {"number": number}, {"rows": np.full((300, 50), float(number))})


def test_all_hear_all_in_order_also_before_they_are_connected(three: tuple[list[LinkThread], list[Heard]]) -> None:
    lines, heard = three
    for number in range(5):
        for server in range(3):
            for other in {0, 1, 2} - {server}:
                lines[server].send(other, rows(number))
    for server, other in ((0, 1), (0, 2), (1, 2)):
        lines[server].open(other, lines[other].address)
    wait_for(lambda: all(len(one) == 10 for one in heard))
    for one in heard:
        numbers = [message.fields["number"] for message in one if isinstance(message, Message)]
        assert sorted(numbers) == sorted(2 * list(range(5)))
        assert all((message.tensors["rows"] == message.fields["number"]).all() for message in one)  # type: ignore[union-attr]
    lines[0].send(2, rows(7))
    for one in lines:
        one.close()  # what was said before is heard, and an end that was announced is no loss
    assert [len(one) for one in heard] == [10, 10, 11]
    assert not any(isinstance(message, WorkerLost) for one in heard for message in one)


def test_a_lost_connection_is_told_on_both_sides(three: tuple[list[LinkThread], list[Heard]]) -> None:
    lines, heard = three
    relay = Relay(lines[1].address)
    lines[0].open(1, relay.address)
    lines[0].send(1, rows(1))
    wait_for(lambda: heard[1])
    relay.cut()
    wait_for(lambda: heard[0] and len(heard[1]) == 2)
    for server, message in ((0, heard[0][-1]), (1, heard[1][-1])):
        assert isinstance(message, WorkerLost)
        assert f"worker {server} has lost its connection to worker {1 - server}" in str(message)
    relay.close()


def test_an_error_in_the_thread_is_told(three: tuple[list[LinkThread], list[Heard]]) -> None:
    lines, heard = three

    def broken(*given: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    lines[0].open(1, lines[1].address)
    lines[1]._on_message = broken  # type: ignore[method-assign]
    lines[0].send(1, rows(1))
    wait_for(lambda: heard[0] and heard[1])
    assert "the thread of the server links has ended: ZeroDivisionError" in str(heard[1][0])
    assert "lost its connection to worker 1" in str(heard[0][0])
    with pytest.raises(RuntimeError, match="thread of the server links has ended"):
        lines[1].send(0, rows(1))


def test_who_may_connect(three: tuple[list[LinkThread], list[Heard]]) -> None:
    """Not a stranger, not a server that is connected already, and nobody with what was recorded of one."""
    lines, heard = three
    relay = Relay(lines[2].address)
    lines[0].open(2, relay.address)
    lines[0].send(2, rows(1))
    wait_for(lambda: heard[2])
    host, port = parse_address(lines[2].address)
    lease = lines[0]._lease(2)
    for name, key in ((lease, derive_key(KEY, lease)), (lines[1]._lease(2), new_key()), ("0" * 16, new_key())):
        with pytest.raises((OSError, Refused)):
            connect(host, port, name, key)
    for address in (lines[1].address, lines[2].address):  # another server, and the same one again
        with socket.create_connection(parse_address(address)) as sock:
            sock.sendall(relay.recorded[0])
    wait_for(lambda: lines[1].refused == 1 and lines[2].refused >= 3)
    lines[0].send(2, rows(2))
    wait_for(lambda: len(heard[2]) == 2)
    assert not any(isinstance(message, WorkerLost) for message in heard[0] + heard[2])
    for one in lines:
        one.close()
    relay.close()
