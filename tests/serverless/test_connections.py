"""Unauthenticated peers: whatever they send, memory and descriptors stay bounded, and tasks continue."""

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.serverless.peers import FLOODS, flood, request, wait_for, worker
from weft.serverless import listener
from weft.serverless.pool import PoolInvoker
from weft_function.address import parse_address
from weft_function.session import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    JOIN_BYTES,
    make_hello,
    new_key,
    new_lease,
    shared_lease_key,
)

KEY = new_key()
MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[PoolInvoker]:
    """A pool with one worker that was brought to it."""
    made = PoolInvoker(0, key=KEY)
    with worker(made.address, KEY):
        wait_for(lambda: made.usage().workers == 1)
        yield made
        made.close()


def does_tasks(pool: PoolInvoker) -> bool:
    return all((pool.submit(request(one), 60.0).result(60).tensors["y"] == one).all() for one in range(5))


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("kind", FLOODS)
def test_floods_cost_little(pool: PoolInvoker, kind: str) -> None:
    assert does_tasks(pool)
    before, descriptors = rss_bytes(), len(os.listdir("/proc/self/fd"))
    with flood(pool.address, kind):
        wait_for(lambda: pool.usage().refused > 2 * listener.MAX_HANDSHAKES or len(pool._listener.handshakes) > 60)
        for _ in range(5):
            assert does_tasks(pool)
            assert len(os.listdir("/proc/self/fd")) - descriptors <= listener.MAX_HANDSHAKES + 4
            assert len(pool._listener.handshakes) <= listener.MAX_HANDSHAKES
            assert rss_bytes() - before < 16 * MIB
            time.sleep(0.1)
    assert pool.usage().workers == 1 and pool.usage().lost == 0


def test_who_does_not_greet_is_turned_away(pool: PoolInvoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.3)
    with socket.create_connection(parse_address(pool.address)) as silent:
        silent.settimeout(20)
        assert silent.recv(1) == b""  # the server ended it
    assert pool.usage().refused == 1 and not pool._listener.handshakes and does_tasks(pool)


def test_a_lease_without_its_key_is_worth_nothing(pool: PoolInvoker) -> None:
    """Who knows a worker's lease, from the wire or elsewhere, can neither join with it nor disturb its worker."""
    (lease,) = pool._connected
    for _ in range(3):
        with socket.create_connection(parse_address(pool.address)) as sock:
            sock.sendall(make_hello(lease))
            sock.settimeout(20)
            challenge = b""
            while len(challenge) < CHALLENGE_BYTES:
                challenge += sock.recv(CHALLENGE_BYTES)
            sock.sendall(bytes(JOIN_BYTES))
            assert sock.recv(1) == b""
    assert pool.usage().refused == 3 and pool.usage().workers == 1 and does_tasks(pool)
    assert shared_lease_key(KEY, lease) != KEY and HELLO_BYTES < 64


def test_without_a_shared_key_only_own_leases_are_heard() -> None:
    pool = PoolInvoker(0)
    try:
        with socket.create_connection(parse_address(pool.address)) as sock:
            sock.sendall(make_hello(new_lease()))
            sock.settimeout(20)
            assert sock.recv(1) == b""
        assert pool.usage().refused == 1
    finally:
        pool.close()


def test_no_descriptor_is_left(pool: PoolInvoker) -> None:
    """The process may open no more files: who knocks waits, tasks go on, and later all are let in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, hard))
        with suppress(OSError):
            while True:
                waiting.append(socket.create_connection(parse_address(pool.address)))
        assert does_tasks(pool)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for sock in waiting:
            sock.close()
    with worker(pool.address, KEY):
        wait_for(lambda: pool.usage().workers == 2)
        pool.close()


# -- clocks ----------------------------------------------------------------------------------------------------------

STEPPING = """
import time
_now, _count = time.time, [0]
def stepping():
    _count[0] += 1
    return _now() + (300.0 if _count[0] % 2 else -86400.0)
time.time = stepping
"""


def test_no_clock_is_asked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """The time of day steps forth by five minutes and back by a day, here and in the workers, at every look at it."""
    (tmp_path / "sitecustomize.py").write_text(STEPPING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    said = subprocess.run([sys.executable, "-c", "import time; print(abs(time.time() - time.time()) > 1000)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout == "True\n"  # so it is in processes that are started here
    steps = threading.local()

    def stepping(now=time.time) -> float:  # type: ignore[no-untyped-def]
        steps.count = getattr(steps, "count", 0) + 1
        return now() + (300.0 if steps.count % 2 else -86400.0)

    monkeypatch.setattr(time, "time", stepping)
    pool = PoolInvoker(2)
    try:
        for _ in range(10):
            assert does_tasks(pool)
        usage = pool.usage()
        assert usage.refused == usage.lost == 0 and usage.tasks == 50
    finally:
        pool.close()
