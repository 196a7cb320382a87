"""Workers that join, work and leave; a worker that sends arbitrary messages cannot affect the tasks of others."""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serverless.cases import CASES, pipelined, some_shards
from tests.serverless.peers import Relay, RogueWorker, request, wait_for, worker
from weft.comm import Communicator
from weft.errors import UserError
from weft.serverless.broker import MAX_REFUSALS, TASKS_PER_WORKER
from weft.serverless.dispatch import Dispatcher, RetryPolicy
from weft.serverless.invoker import Lost
from weft.serverless.pool import PoolInvoker, run_workers
from weft.serverless.settings import ExecutorConfig
from weft_function.address import parse_address
from weft_function.program import Op, Program
from weft_function.session import new_key
from weft_function.task import Request, Response, TaskId, TaskKind
from weft_function.wire import Message

KEY = new_key()


@pytest.fixture
def pool() -> Iterator[PoolInvoker]:
    made = PoolInvoker(1)
    yield made
    made.close()


@pytest.fixture
def open_pool() -> Iterator[PoolInvoker]:
    """A pool without workers of its own."""
    made = PoolInvoker(0, key=KEY)
    yield made
    made.close()


def test_tasks_are_done_and_workers_leave(pool: PoolInvoker) -> None:
    answers = [pool.submit(request(number), 60.0) for number in range(20)]
    for number, answer in enumerate(answers):
        assert (answer.result(60).tensors["y"] == number).all()
    usage = pool.usage()
    assert usage.tasks == 20 and usage.workers == 1 and usage.bytes_out > 20 * 4 * 3 * 8 and usage.refused == 0
    (process,) = pool.processes
    seen = Path(f"/proc/{process}/cmdline").read_bytes()
    assert b"--parent" in seen and not any(lease.encode() in seen for lease in pool._leases)
    pool.close()
    assert not os.path.exists(f"/proc/{process}")


def test_a_worker_that_never_answers_is_given_up(pool: PoolInvoker) -> None:
    pool.scale(0)
    wait_for(lambda: pool.usage().workers == 0)
    late = pool.submit(request(), 0.3)
    with pytest.raises(Lost, match="no response to task"):
        late.result(20)
    pool.scale(1)
    assert pool.submit(request(3), 60.0).result(60).tensors["y"][0, 0] == 3


def test_a_stopped_worker_is_replaced(pool: PoolInvoker) -> None:
    """It has two tasks and answers none: what it holds is given up, and another process does the rest."""
    pool.submit(request(), 60.0).result(60)
    (process,) = pool.processes
    os.kill(process, signal.SIGSTOP)
    futures = [pool.submit(request(number), 0.5) for number in range(2)]
    for future in futures:
        with pytest.raises(Lost):
            future.result(30)
    assert pool.submit(request(5), 60.0).result(60).tensors["y"][0, 0] == 5
    assert process not in pool.processes and not os.path.exists(f"/proc/{process}")


def test_workers_from_elsewhere(open_pool: PoolInvoker, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "WEFT_KEY": KEY.hex()}
    command = [sys.executable, "-m", "weft", "worker", open_pool.address, "--count", "2", "--idle", "2"]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: open_pool.usage().workers == 2, 60)
        found = [open_pool.submit(request(n), 60.0).result(60).tensors["y"][0, 0] for n in range(5)]
        assert found == [0, 1, 2, 3, 4]
        assert process.wait(30) == 0  # nobody had anything for them
    finally:
        process.kill()
        process.wait()
    monkeypatch.setenv("WEFT_KEY", "short")
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        run_workers(open_pool.address, 1, None, 60.0, ())
    monkeypatch.setenv("WEFT_KEY", KEY.hex())
    with pytest.raises(UserError, match="not an address"):
        run_workers("localhost", 1, None, 60.0, ())


def test_a_worker_without_a_server_says_so_and_leaves() -> None:
    closed = PoolInvoker(0)
    closed.close()
    with worker(closed.address, KEY, wait_seconds=0.3) as reports:
        pass
    (report,) = reports
    assert not report.reached and "no server at 127.0.0.1" in report.reason and "in 0.3 s" in report.reason


def test_an_address_that_is_taken(open_pool: PoolInvoker) -> None:
    for bind in (open_pool.address, "tcp://no.such.host.invalid:1", "127.0.0.1", "tcp://127.0.0.1:70000"):
        with pytest.raises(UserError, match="cannot be listened at"):
            PoolInvoker(0, bind=bind)


def test_a_function_that_is_not_trusted() -> None:
    program = Program(("x",), ("y",), (Op("call", ("x",), "y", call="os:getcwd"),))
    task = TaskId("run", 1, 0, 0, 0, TaskKind.APPLY_VERTEX)
    pool = PoolInvoker(1)
    try:
        future = pool.submit(Request(task, "forward", program, 1, {}, {"x": np.zeros((1, 1))}), 60.0)
        with pytest.raises(RuntimeError, match="not told to run functions of os"):
            future.result(60)
    finally:
        pool.close()


# -- connections that are lost ---------------------------------------------------------------------------------------


def test_a_connection_that_is_cut_is_opened_anew(open_pool: PoolInvoker) -> None:
    relay = Relay(open_pool.address)
    try:
        with worker(relay.address, KEY):
            for number in range(4):
                wait_for(lambda: open_pool.usage().workers == 1)
                assert open_pool.submit(request(number), 60.0).result(60).tensors["y"][0, 0] == number
                relay.cut()
                wait_for(lambda count=number: len(relay.recorded) == count + 2)
            wait_for(lambda: open_pool.usage().workers == 1)
            open_pool.close()
    finally:
        relay.close()


def test_what_was_recorded_of_a_worker_is_worth_nothing(open_pool: PoolInvoker) -> None:
    """Its greeting and its answer, said again to the same server and to another one that has the same key."""
    other = PoolInvoker(0, key=KEY)
    relay = Relay(open_pool.address)
    try:
        with worker(relay.address, KEY):
            open_pool.submit(request(1), 60.0).result(60)
            for pool, workers in ((open_pool, 1), (other, 0)):
                with socket.create_connection(parse_address(pool.address)) as sock:
                    sock.sendall(relay.recorded[0])
                    wait_for(lambda pool=pool: pool.usage().refused == 1)
                assert pool.usage().workers == workers and pool.usage().tasks == workers
            open_pool.close()
    finally:
        relay.close()
        other.close()


# -- workers that say anything ---------------------------------------------------------------------------------------

anything = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False, allow_infinity=False)
anything |= st.text(max_size=5) | st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(max_size=2), st.none())
kinds = st.sampled_from(
    ["register", "registered", "task", "response", "failed", "missing_weights", "rows", "gradients", "stop", "bye"]
)
arrays = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["float64", "float32", "int64", "bool"]),
)
tensors = st.dictionaries(st.sampled_from(["y", "x", "w:w", "d:w", "other"]), arrays, max_size=3)


def not_an_answer(fields: dict[str, Any], found: dict[str, np.ndarray]) -> bool:
    """What is generated must not happen to be right."""
    seconds = fields.get("seconds")
    right = type(seconds) in (int, float) and 0 <= seconds < 1e9 and set(found) == {"y"}
    return not (right and found["y"].shape == (4, 3) and found["y"].dtype == np.float64)


def test_whatever_a_worker_says_costs_one_attempt(open_pool: PoolInvoker) -> None:
    """Sealed messages of wrong kinds, types, dtypes and shapes, with the right number or any, and reflected tasks."""
    done: list[int] = []

    @settings(max_examples=150, deadline=None, database=None)
    @given(kinds, st.dictionaries(st.sampled_from(["seconds", "reason", "refused", "worker"]), anything), tensors,
           st.none() | anything, st.booleans())  # fmt: skip
    def say(kind: str, fields: dict[str, Any], found: dict[str, np.ndarray], number: Any, reflects: bool) -> None:
        rogue = RogueWorker(open_pool.address, KEY)
        rogue.send(Message("register", {"worker": "rogue"}))
        heard = rogue.receive()
        assert heard is not None and heard.kind == "registered"
        attempt = open_pool.submit(request(7), 60.0)
        task = rogue.receive()
        assert task is not None and task.kind == "task"
        if number is None:
            fields["attempt"] = task.fields["attempt"]
        elif not isinstance(number, float) or math.isfinite(number):
            fields["attempt"] = number
        message = task if reflects else Message(kind, fields, found)
        if message.kind == "response" and not not_an_answer(fields, found):
            fields["seconds"] = -1
        rogue.send(message)
        rogue.close()
        with pytest.raises(RuntimeError):  # refused, lost, or said to have failed; never an answer, never a wait
            attempt.result(30)
        done.append(1)

    say()
    assert len(done) > 100 and open_pool.usage().refused > 50
    with worker(open_pool.address, KEY):
        assert open_pool.submit(request(9), 60.0).result(60).tensors["y"][0, 0] == 9
        open_pool.close()


def test_a_refused_answer_is_tried_elsewhere(open_pool: PoolInvoker) -> None:
    """Every task is done rightly and counted once, though one of two workers answers each with another's numbers."""
    events: list[object] = []
    answers: dict[int, np.ndarray] = {}
    dispatcher = Dispatcher(open_pool, events.append, lambda id: True, policy=RetryPolicy(hedge_share=0))
    rogue = RogueWorker(open_pool.address, KEY)
    rogue.send(Message("register", {"worker": "rogue"}))
    with worker(open_pool.address, KEY):
        wait_for(lambda: open_pool.usage().workers == 2)

        def kept(number: int) -> Any:
            return lambda answer: answers.__setitem__(number, answer.tensors["y"])

        for number in range(12):
            dispatcher.submit(request(number), kept(number))
        while len(answers) < 12:
            task = rogue.receive(0.05)
            if task is not None and task.kind == "task":
                wrong = {"y": np.zeros((5, 3))}  # of a task with other rows
                rogue.send(Message("response", {"attempt": task.fields["attempt"], "seconds": 0.1}, wrong))
            while events:
                dispatcher.finish_attempt(events.pop(0))
        open_pool.close()
    rogue.close()
    assert all((rows == number).all() for number, rows in answers.items())
    usage = open_pool.usage()
    assert usage.tasks == 12 and usage.refused == MAX_REFUSALS and usage.workers == 0
    assert (
        MAX_REFUSALS <= usage.lost == dispatcher.waste.retries < MAX_REFUSALS + TASKS_PER_WORKER
    )  # the last one that it had, too


def test_a_worker_may_not_send_more_than_its_tasks_answers(open_pool: PoolInvoker) -> None:
    rogue = RogueWorker(open_pool.address, KEY)
    rogue.send(Message("register", {"worker": "rogue"}))
    attempt = open_pool.submit(request(), 60.0)
    rogue.receive()
    task = rogue.receive()
    assert task is not None
    fields = {"attempt": task.fields["attempt"], "seconds": 0.1}
    rogue.send(Message("response", fields, {"y": np.zeros((1 << 20, 3))}))
    with pytest.raises(Lost, match="exceeds the limit"):
        attempt.result(30)
    rogue.close()


# -- a thread that ends ------------------------------------------------------------------------------------------------


def test_an_error_in_the_thread_fails_all_who_wait(open_pool: PoolInvoker, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = open_pool.submit(request(), 600.0)

    def broken() -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(open_pool, "_assign", broken)
    more: list[Future[Response]] = [waiting]
    with pytest.raises(RuntimeError, match="thread of the pool has ended: ZeroDivisionError"):
        while True:
            more.append(open_pool.submit(request(), 600.0))
    for future in more:
        with pytest.raises(RuntimeError, match="thread of the pool has ended"):
            future.result(10)


def test_a_run_whose_broker_breaks_fails() -> None:
    def make(config: ExecutorConfig, trust: Any) -> PoolInvoker:
        made, answers = PoolInvoker(1), list[int]()
        count = made._end_attempt

        def breaking(*given: Any) -> None:
            answers.append(1)
            if len(answers) == 10:
                raise KeyError("a mistake of ours")
            count(*given)

        made._end_attempt = breaking  # type: ignore[method-assign]
        return made

    config = ExecutorConfig(name="pool", intervals=4, workers=1, placement="functions")
    with pytest.raises(RuntimeError, match="thread of the pool has ended: KeyError"):
        pipelined(Communicator.alone(), some_shards(1), CASES["gcn"], 10, config, make)


def test_tasks_without_any_worker_end_with_the_deadline() -> None:
    pool = PoolInvoker(0, key=KEY, deadline_seconds=0.5)
    try:
        with pytest.raises(UserError, match=r"no worker was at tcp://127.* for 0.5 s: start some with 'weft worker"):
            pool.submit(request(), 60.0).result(20)
        with pytest.raises(UserError, match=r"no worker has come to tcp://127.* in 0.5 s"):
            pool.await_workers()
    finally:
        pool.close()


def test_what_an_invoker_forgets_is_given_up() -> None:
    """No future of it ever ends: the task fails as often as it may, and then for good."""

    class Silent:
        name = "silent"

        def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
            asked.append(deadline_seconds)
            return Future()

    asked: list[float] = []
    now = [0.0]
    patience = RetryPolicy(deadline_seconds=100.0, max_attempts=4)
    dispatcher = Dispatcher(Silent(), list[object]().append, lambda id: True, lambda: now[0], 1, patience)  # type: ignore[arg-type]
    dispatcher.submit(request(), lambda answer: None)
    with pytest.raises(RuntimeError, match="was lost 4 times: the invoker did not report its end"):
        while True:
            patience_seconds = dispatcher.seconds_to_tick()
            assert patience_seconds is not None
            now[0] += patience_seconds
            dispatcher.tick()
    assert asked == [25.0, 50.0, 100.0, 100.0]
