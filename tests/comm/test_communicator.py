"""Collectives, gradients, messages of any size and dtype, and what happens when a peer does not answer."""

import os
import time
from pathlib import Path

import pytest
import torch

from tests.workers import WorkerFailed, run_workers
from weft.comm import Communicator, all_reduce_gradients, communicator, open_communicator
from weft.errors import UserError, WorkerLost


def collectives(comm: Communicator) -> dict[str, torch.Tensor]:
    summed = comm.all_reduce(torch.tensor([1.0, comm.worker]), "control", "sums")
    top = comm.all_reduce(torch.tensor([comm.worker]), "control", "top", op="max")
    gathered = comm.all_gather(torch.full((2, 3), comm.worker, dtype=torch.bfloat16), "topology", "parts")
    told = comm.broadcast(torch.full((4,), comm.worker, dtype=torch.int16), 1, "features", "word")
    flags = comm.all_gather(torch.tensor([comm.worker == 0]), "control", "flags")
    comm.barrier("end")
    sent = torch.tensor([comm.sent["control"], comm.sent["topology"], comm.sent["features"]])
    return {"summed": summed, "top": top, "gathered": gathered, "told": told, "flags": flags, "sent": sent}


def test_collectives() -> None:
    for worker, got in enumerate(run_workers(collectives, 3)):
        assert got["summed"].tolist() == [3.0, 3.0]
        assert got["top"].tolist() == [2]
        assert got["gathered"].shape == (3, 2, 3)
        assert got["gathered"].dtype == torch.bfloat16
        assert got["gathered"][:, 0, 0].tolist() == [0.0, 1.0, 2.0]
        assert got["told"].tolist() == [1] * 4
        assert got["flags"][:, 0].tolist() == [True, False, False]
        assert got["sent"].tolist() == [8 + 8 + 1, 12, 8 if worker == 1 else 0]


def gradients(comm: Communicator) -> tuple[list[torch.Tensor], list[bool], int]:
    parameters = [
        torch.nn.Parameter(torch.zeros(3, 2)),
        torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)),
        torch.nn.Parameter(torch.zeros(4)),
        torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    ]
    kept: list[int] = []
    for step in (1, 2):
        for position, parameter in enumerate(parameters[:3]):
            parameter.grad = None
            if position != comm.worker:  # each worker lacks one of the gradients
                parameter.grad = torch.full_like(parameter, float(10**comm.worker * step))
        all_reduce_gradients(comm, parameters)
        kept.append(parameters[0].grad.data_ptr())  # type: ignore[union-attr]
    grads = [p.grad for p in parameters if p.grad is not None]
    return grads, [kept[0] == kept[1], parameters[3].grad is None], comm.sent["gradients"]


def test_gradients_are_summed_in_one_buffer() -> None:
    for grads, (same_buffer, frozen_untouched), sent in run_workers(gradients, 3):
        assert same_buffer and frozen_untouched
        assert torch.equal(grads[0], torch.full((3, 2), 220.0))
        assert torch.equal(grads[1], torch.full((5,), 202.0, dtype=torch.float64))
        assert torch.equal(grads[2], torch.full((4,), 22.0))
        assert sent == 2 * (6 * 4 + 5 * 8 + 4 * 4)


def noise(worker: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * worker + size)
    return (8 * torch.randn(size, generator=draw)).to(dtype)


REDUCED = [
    (size, dtype, op)
    for size in (1, 3, 1001, 300_001)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64)
    for op in ("sum", "max", "min")
]


def reduced(comm: Communicator, direct_bytes: int) -> list[torch.Tensor]:
    communicator.DIRECT_BYTES, before = direct_bytes, communicator.DIRECT_BYTES
    try:
        return [comm.all_reduce(noise(comm.worker, size, dtype), "control", "noise", op) for size, dtype, op in REDUCED]
    finally:
        communicator.DIRECT_BYTES = before


@pytest.mark.parametrize("direct_bytes", [0, 1 << 20])
def test_all_reduce_gives_every_worker_the_same_bits(direct_bytes: int) -> None:
    """Around a ring, and in two rounds, which the longest rows are too long for."""
    first, *others = run_workers(reduced, 4, direct_bytes)
    for number, (size, dtype, op) in enumerate(REDUCED):
        assert all(torch.equal(first[number], other[number]) for other in others)
        given = torch.stack([noise(worker, size, dtype) for worker in range(4)]).double()
        wanted = {"sum": given.sum(0), "max": given.amax(0), "min": given.amin(0)}[op]
        tolerance = {torch.bfloat16: 0.05, torch.float32: 1e-5}.get(dtype, 1e-12) if op == "sum" else 0.0
        torch.testing.assert_close(first[number].double(), wanted, rtol=tolerance, atol=10 * tolerance)


def long_messages(comm: Communicator) -> bool:
    communicator.MAX_MESSAGE_BYTES, before = 1000, communicator.MAX_MESSAGE_BYTES
    try:
        peer = 1 - comm.worker
        for size in (1, 999, 1000, 1001, 2 * 1000, 12345):  # alternating sizes catch pieces that mix
            sent = torch.arange(size).to(torch.int16) + comm.worker
            got = torch.zeros(size, dtype=torch.int16)
            outgoing: list[torch.Tensor | None] = [None, None]
            incoming: list[torch.Tensor | None] = [None, None]
            outgoing[peer], incoming[peer] = sent, got
            comm.post(outgoing, incoming, "features", "long").wait()
            if not torch.equal(got, torch.arange(size).to(torch.int16) + peer):
                return False
    finally:
        communicator.MAX_MESSAGE_BYTES = before
    return comm.sent["features"] == 2 * (1 + 999 + 1000 + 1001 + 2000 + 12345)


def test_long_messages_travel_in_pieces() -> None:
    assert run_workers(long_messages, 2) == [True, True]


def nothing_to_say(comm: Communicator) -> int:
    empty: list[torch.Tensor | None] = [torch.empty(0) for _ in range(comm.num_workers)]
    empty[comm.worker] = None
    comm.post(empty, empty, "features", "nothing").wait()
    # A message after one that only one side knows to be empty still finds its partner.
    peer = (comm.worker + 1) % 2
    outgoing: list[torch.Tensor | None] = [None] * comm.num_workers
    incoming: list[torch.Tensor | None] = [None] * comm.num_workers
    if comm.worker < 2:
        outgoing[peer], incoming[peer] = torch.ones(1), torch.zeros(1)
        comm.post(outgoing, incoming, "features", "one").wait()
    return comm.sent["features"]


def test_empty_messages_are_not_sent_and_silent_workers_need_not_post() -> None:
    assert run_workers(nothing_to_say, 3) == [4, 4, 0]


def large_messages(comm: Communicator) -> tuple[bool, bool]:
    """Several exchanges at a time, each too large to go all at once; some pairs have nothing for each other."""

    def length(by: int, to: int, number: int) -> int:
        return 0 if by == to or (by + to + number) % 4 == 0 else 30_000 * (1 + by) + 1000 * to + number

    def content(by: int, to: int, number: int) -> torch.Tensor:
        return torch.arange(length(by, to, number), dtype=torch.int32) * (1 + by + 10 * to) + number

    me, everybody = comm.worker, range(comm.num_workers)
    exchanges, received = [], []
    for number in range(3):
        outgoing = [None if q == me else content(me, q, number) for q in everybody]
        incoming = [None if q == me else torch.empty(length(q, me, number), dtype=torch.int32) for q in everybody]
        exchanges.append(comm.post(outgoing, incoming, "features", f"exchange {number}"))
        received.append(incoming)
    comm.barrier("collectives do not wait for pairwise rounds")
    right = True
    for number in (2, 0, 1):
        exchanges[number].wait()
        for q, rows in enumerate(received[number]):
            right = right and (rows is None or torch.equal(rows, content(q, me, number)))
    return right, comm._pairwise is not None


@pytest.mark.parametrize("num_workers", [2, 3, 4])
def test_large_messages_go_in_pairwise_rounds_among_three_workers_or_more(num_workers: int) -> None:
    assert run_workers(large_messages, num_workers) == [(True, num_workers > 2)] * num_workers


SILENCE_SECONDS = (
    8.0  # the deadline; survivors wait for each other's notes for 2 s, which they do for one of 8 s or more
)


def silent_peer(comm: Communicator, operation: str, told: Path) -> tuple[str, float]:
    """Worker 1 says nothing until the others have written what they made of it."""
    comm.step = "epoch 12"
    comm.barrier("all are there")  # the deadline begins for all at once
    if comm.worker == 1:
        until = time.monotonic() + 90
        while not all((told / str(worker)).exists() for worker in (0, 2)):
            if time.monotonic() > until:
                return "nobody gave up", 0.0
            time.sleep(0.05)
        return "slept", 0.0
    begin = time.monotonic()
    said = what_is_said_of_silence(comm, operation)
    seconds = time.monotonic() - begin
    (told / str(comm.worker)).touch()
    return said, seconds


def what_is_said_of_silence(comm: Communicator, operation: str) -> str:
    try:
        if operation == "large post":
            others = [q for q in range(comm.num_workers) if q != comm.worker]
            rows = [torch.empty(50_000) if q in others else None for q in range(comm.num_workers)]
            comm.post(rows, [None if row is None else torch.empty_like(row) for row in rows], "features", "rows").wait()
        elif operation == "post":
            outgoing: list[torch.Tensor | None] = [None] * comm.num_workers
            incoming: list[torch.Tensor | None] = [None] * comm.num_workers
            incoming[1] = torch.empty(3)
            comm.post(outgoing, incoming, "features", "rows").wait()
        else:
            comm.all_reduce(torch.ones(3), "control", "the loss")
    except WorkerLost as lost:
        return str(lost)
    return "nothing happened"


@pytest.mark.parametrize("operation", ["post", "large post", "all_reduce"])
def test_a_peer_that_never_answers_is_named_within_the_deadline(operation: str, tmp_path: Path) -> None:
    results = run_workers(silent_peer, 3, operation, tmp_path, fresh=True, deadline_seconds=SILENCE_SECONDS)
    assert results[1][0] == "slept"  # the fault fired, and the others did not wait for its end
    for worker in (0, 2):
        message, seconds = results[worker]
        assert seconds < SILENCE_SECONDS + 30.0  # a deadline, on a busy machine
        assert message.startswith(f"worker {worker} lost worker 1 during epoch 12: ")
        if operation == "large post":  # either message of a round may be the one that is waited for
            assert "receiving rows" in message or "sending rows" in message
        else:
            assert ("receiving rows" if operation == "post" else "all-reduce of the loss") in message
        assert f"deadline of {SILENCE_SECONDS:g} s" in message


def never_joins(comm: Communicator) -> str:
    os.environ["WORLD_SIZE"] = "2"
    os.environ["MASTER_PORT"] = "1"  # nobody listens there
    try:
        open_communicator(deadline_seconds=2.0)
    except WorkerLost as lost:
        return str(lost)
    return "joined"


def test_a_run_that_never_meets_ends_within_the_deadline() -> None:
    (message,) = run_workers(never_joins, 1, fresh=True, timeout_seconds=30)
    assert "worker 0 could not join the run at 127.0.0.1:1" in message
    assert "2 s" in message


def raises_on_one(comm: Communicator) -> None:
    if comm.worker == 1:
        raise KeyError("only here")
    comm.barrier("never")


def test_the_test_helper_names_the_cause() -> None:
    with pytest.raises(WorkerFailed) as failure:
        run_workers(raises_on_one, 2, fresh=True, deadline_seconds=3.0)
    assert (failure.value.worker, failure.value.kind) == (1, "KeyError")


def test_backends_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="did you mean 'gloo'"):
        open_communicator(backend="glo")
    with pytest.raises(UserError, match="'nccl'"):
        open_communicator(backend="nccl")


def test_one_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    comm = open_communicator()
    assert (comm.worker, comm.num_workers, comm.backend) == (0, 1, None)
    value = comm.all_reduce(torch.ones(2), "control", "x")
    assert value.tolist() == [1.0, 1.0]
    assert comm.all_gather(value, "control", "x").shape == (1, 2)
    assert sum(comm.sent.values()) == 0
