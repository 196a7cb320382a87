"""The socket that workers connect to: who may speak, who comes and goes, and what a foreign message does."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from weft.errors import UserError
from weft.serverless.pool import PoolInvoker, run_workers
from weft_function.program import Op, Program
from weft_function.request import Kind, Request, TaskId
from weft_function.wire import Message, Seal, new_key

PROGRAM = Program(("x",), ("y",), (Op("linear", ("x",), "y", ("w",)),))


def request(number: int = 0, rows: int = 4) -> Request:
    task = TaskId("run", 1, 0, number, 0, Kind.APPLY_VERTEX)
    return Request(task, "forward", PROGRAM, 1, {"w": np.eye(3)}, {"x": np.full((rows, 3), float(number))})


@pytest.fixture
def pool() -> Iterator[PoolInvoker]:
    made = PoolInvoker(1)
    yield made
    made.close()


def wait_for(what, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_tasks_are_done_and_workers_leave(pool: PoolInvoker) -> None:
    answers = [pool.submit(request(number), 60.0) for number in range(20)]
    for number, answer in enumerate(answers):
        assert (answer.result(60).tensors["y"] == number).all()
    usage = pool.usage()
    assert usage.tasks == 20 and usage.workers == 1 and usage.bytes_out > 20 * 4 * 3 * 8
    (process,) = pool.processes
    pool.close()
    assert not os.path.exists(f"/proc/{process}")


def test_foreign_and_replayed_messages_are_refused_and_counted(pool: PoolInvoker) -> None:
    pool.submit(request(), 60.0).result(60)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(pool.address)
    hello = Message("hello", {"worker": "stranger", "pid": 1})
    socket.send_multipart([b"no seal at all", b"{}"])
    socket.send_multipart(Seal(new_key()).close(hello))
    wait_for(lambda: pool.usage().refused == 2)
    frames = Seal(pool.key).close(hello)
    socket.send_multipart(frames)
    wait_for(lambda: pool.usage().workers == 2)
    socket.send_multipart(frames)  # recorded and sent again
    wait_for(lambda: pool.usage().refused == 3)
    socket.close()
    context.term()
    assert pool.usage().workers == 2


def test_a_worker_that_never_answers_is_given_up(pool: PoolInvoker) -> None:
    pool.scale(0)
    wait_for(lambda: pool.usage().workers == 0)
    late = pool.submit(request(), 0.3)
    with pytest.raises(RuntimeError, match="no answer to task"):
        late.result(20)
    pool.scale(1)
    assert pool.submit(request(3), 60.0).result(60).tensors["y"][0, 0] == 3


def test_workers_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    pool = PoolInvoker(0, key=key)
    environment = {**os.environ, "WEFT_KEY": key.hex()}
    command = [sys.executable, "-m", "weft", "worker", pool.address, "--count", "2", "--idle", "2"]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: pool.usage().workers == 2, 60)
        assert [pool.submit(request(n), 60.0).result(60).tensors["y"][0, 0] for n in range(5)] == [0, 1, 2, 3, 4]
        assert process.wait(30) == 0  # nobody had anything for them
    finally:
        process.kill()
        process.wait()
        pool.close()
    monkeypatch.setenv("WEFT_KEY", "short")
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        run_workers(pool.address, 1, None, ())
    monkeypatch.setenv("WEFT_KEY", key.hex())
    with pytest.raises(UserError, match="not an address"):
        run_workers("localhost", 1, None, ())


def test_an_address_that_is_taken() -> None:
    pool = PoolInvoker(0)
    try:
        with pytest.raises(UserError, match="cannot be listened at"):
            PoolInvoker(0, bind=pool.address)
    finally:
        pool.close()


def test_a_function_that_is_not_trusted() -> None:
    program = Program(("x",), ("y",), (Op("call", ("x",), "y", call="os:getcwd"),))
    task = TaskId("run", 1, 0, 0, 0, Kind.APPLY_VERTEX)
    pool = PoolInvoker(1)
    try:
        future = pool.submit(Request(task, "forward", program, 1, {}, {"x": np.zeros((1, 1))}), 60.0)
        with pytest.raises(RuntimeError, match="not told to run functions of os"):
            future.result(60)
    finally:
        pool.close()
