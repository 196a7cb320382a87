"""What workers say to each other: point-to-point rows, a few collectives, exact byte counts, a deadline on every wait.

Bytes are counted where they are handed over, by class, as payload:

- `post` counts every byte of every outgoing message (nothing is sent to oneself, and empty messages are not sent);
- `all_reduce` counts the tensor's bytes once per worker, `all_gather` the bytes this worker contributes, `broadcast`
  the tensor's bytes at its source: what a collective carries, not what its algorithm repeats;
- `barrier` counts nothing. With one worker nothing is ever counted.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from weft.comm.failure import Reports, patience_seconds
from weft.comm.process import report_step
from weft.comm.turns import WORTHWHILE_BYTES, Turn, Turns, Waitable, partners
from weft.errors import UserError, WorkerLost, unknown

KINDS = ("ids", "topology", "features", "hidden_forward", "hidden_backward", "gradients", "control")
Op = Literal["sum", "max", "min"]
T = TypeVar("T")

DEFAULT_DEADLINE_SECONDS = 300.0
# A gloo message is one iovec to the socket and is counted in signed 32-bit numbers in places, and the kernel moves
# at most 2^31 - 4096 bytes a call: longer messages travel as several.
MAX_MESSAGE_BYTES = 1 << 30

DIRECT_BYTES = 4 << 20  # sums of at most so many bytes take two rounds

_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
}
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Pending:
    """Messages in flight. Their tensors belong to the network until `wait` returns."""

    def __init__(self, comm: "Communicator", what: str) -> None:
        self._comm = comm
        self._what = what
        self._receives: dict[int, list[Any]] = {}
        self._sends: dict[int, list[Any]] = {}
        self._landing: dict[int, tuple[Tensor, Tensor]] = {}  # peer -> (host staging, destination on the device)
        self._keep: list[Tensor] = []

    def wait_for(self, peer: int) -> None:
        """Until the message from one peer is here; later calls for the same peer return at once."""
        for work in self._receives.pop(peer, ()):
            self._comm._wait(work, f"receiving {self._what}", peer)
        if peer in self._landing:
            host, destination = self._landing.pop(peer)
            destination.copy_(host)

    def wait(self) -> None:
        """Until every message has arrived and every outgoing tensor may be written to again."""
        for peer in list(self._receives):
            self.wait_for(peer)
        for peer, works in self._sends.items():
            for work in works:
                self._comm._wait(work, f"sending {self._what}", peer)
        self._sends.clear()
        self._keep.clear()


class Communicator:
    """One worker's end of the run's connections. Every worker makes the same calls in the same order."""

    def __init__(
        self,
        worker: int,
        num_workers: int,
        device: torch.device,
        deadline_seconds: float,
        backend: str | None = None,
        reports: Reports | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        assert 0 <= worker < num_workers
        self.worker = worker
        self.num_workers = num_workers
        self.device = device
        self.deadline_seconds = deadline_seconds
        self.backend = backend  # None: one worker, torch.distributed is not involved
        self.sent: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.waited_seconds = 0.0  # blocked on peers, in all waits together
        self.on_wait: Callable[[str, int, int], None] | None = None  # told of every wait: what, start and end (ns)
        self._step = "start"
        self._reports = reports
        self._group = group  # None: torch.distributed's own, of all workers
        # Messages between two workers are numbered per direction, and the number is their tag: several exchanges in
        # flight cannot mix, and workers that have nothing to say to each other need not keep in step.
        self._sent_count = [0] * num_workers
        self._received_count = [0] * num_workers
        self._turns: Turns | None = None
        self.flat_gradients: dict[tuple[int, ...], Tensor] = {}  # kept by all_reduce_gradients

    @classmethod
    def alone(cls, device: str | torch.device = "cpu") -> "Communicator":
        """The communicator of a run with one worker: no network, no torch.distributed."""
        return cls(0, 1, torch.device(device), DEFAULT_DEADLINE_SECONDS)

    def sibling(self) -> "Communicator":
        """Further connections among the same workers, on host memory, for one other thread; all call it together.

        It counts its own bytes. Where there is one worker it is the communicator itself.
        """
        if self.num_workers == 1:
            return self
        deadline = timedelta(seconds=self.deadline_seconds)
        group = self._guard(lambda: dist.new_group(backend="gloo", timeout=deadline), "connecting once more")
        cpu = torch.device("cpu")
        other = Communicator(self.worker, self.num_workers, cpu, self.deadline_seconds, "gloo", self._reports, group)
        other._step = self._step
        return other

    # -- where the run is ---------------------------------------------------------------------------------------

    @property
    def step(self) -> str:
        """Where the loop is ("epoch 12"): named in errors, and by the launcher when this worker dies."""
        return self._step

    @step.setter
    def step(self, step: str) -> None:
        self._step = step
        report_step(step)

    # -- messages -----------------------------------------------------------------------------------------------

    def post(
        self, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None], kind: str, what: str
    ) -> Pending:
        """Starts one message to and from every peer; entry q belongs to peer q, None (or an empty tensor): nothing.

        Both sides must agree on the byte counts. Tensors are contiguous, of any dtype.
        """
        assert len(outgoing) == len(incoming) == self.num_workers, "one entry per worker"
        assert outgoing[self.worker] is None and incoming[self.worker] is None, "own rows do not travel"
        pending = Pending(self, what)
        receives: list[tuple[int, Tensor]] = []
        sends: list[tuple[int, Tensor]] = []
        for peer, tensor in enumerate(incoming):
            if tensor is not None and tensor.numel():
                landing = self._staged(tensor, copy=False)
                if landing is not tensor:
                    pending._landing[peer] = (landing, tensor)
                receives.append((peer, _as_bytes(landing)))
        for peer, tensor in enumerate(outgoing):
            if tensor is not None and tensor.numel():
                leaving = self._staged(tensor, copy=True)
                self._count(kind, leaving)
                sends.append((peer, _as_bytes(leaving)))
        # The tensors must outlive the transfer even where the caller drops them.
        pending._keep = [tensor for _, tensor in receives + sends]
        self._start(pending, receives, sends)
        return pending

    def _start(
        self,
        pending: Pending,
        receives: list[tuple[int, Tensor]],
        sends: list[tuple[int, Tensor]],
        in_turns: bool = True,
    ) -> None:
        # Receives first: a send that finds its receive waiting goes straight into place, and both directions flow.
        ops: list[tuple[bool, int, Tensor, int]] = []
        for peer, data in receives:
            for chunk in torch.split(data, MAX_MESSAGE_BYTES):
                ops.append((True, peer, chunk, self._received_count[peer]))
                self._received_count[peer] += 1
        for peer, data in sends:
            for chunk in torch.split(data, MAX_MESSAGE_BYTES):
                ops.append((False, peer, chunk, self._sent_count[peer]))
                self._sent_count[peer] += 1
        if self.backend == "nccl" and ops:
            # NCCL knows no tags and needs the sends and receives of one round in one group.
            batch = [dist.P2POp(dist.irecv if inward else dist.isend, t, peer) for inward, peer, t, _ in ops]
            first = ops[0][1]
            works = self._guard(lambda: dist.batch_isend_irecv(batch), f"starting {pending._what}", first)
            target = pending._receives if ops[0][0] else pending._sends
            target[first] = works
            for inward, peer, _, _ in ops:  # every receive completes with the group
                if inward:
                    pending._receives.setdefault(peer, works)
            return
        starts: dict[tuple[bool, int], list[Callable[[], Any]]] = {}
        for inward, peer, chunk, number in ops:
            begin: Callable[..., Any] = dist.irecv if inward else dist.isend
            # Gloo keeps high tags for its collectives; 2^24 messages between two workers are never in flight at once.
            start = partial(begin, chunk, peer, group=self._group, tag=number % (1 << 24))
            starts.setdefault((inward, peer), []).append(start)
        size = max(sum(data.numel() for _, data in messages) for messages in (receives, sends))
        if in_turns and self.num_workers > 2 and self.backend == "gloo" and size >= WORTHWHILE_BYTES:
            self._take_turns(pending, starts)
            return
        for (inward, peer), begins in starts.items():
            what = f"{'receiving' if inward else 'sending'} {pending._what}"
            works = [self._guard(begin, what, peer) for begin in begins]
            (pending._receives if inward else pending._sends)[peer] = works

    def _take_turns(self, pending: Pending, starts: dict[tuple[bool, int], list[Callable[[], Any]]]) -> None:
        """Leaves messages to a thread that starts them turn by turn, first to the next worker."""
        turns = []
        for to, by in partners(self.worker, self.num_workers):
            turn = Turn((to, by), starts.get((True, by), []), starts.get((False, to), []))
            if turn.receives:
                pending._receives[by] = [Waitable(turn.wait_received)]
            if turn.sends:
                pending._sends[to] = [Waitable(turn.wait_sent)]
            if turn.receives or turn.sends:
                turns.append(turn)
        if self._turns is None:
            self._turns = Turns(timedelta(seconds=self._wait_limit))
        self._turns.start(turns)

    # -- collectives --------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, kind: str, what: str, op: Op = "sum") -> Tensor:
        """In place; every worker ends with the same bits. Float32, float64, bf16, or integers."""
        if self.num_workers == 1 or not tensor.numel():
            return tensor
        assert tensor.is_contiguous() and tensor.dtype is not torch.bool
        self._count(kind, tensor)
        staged = self._staged(tensor, copy=True)
        if self.backend == "gloo" and self.num_workers > 2 and tensor.nbytes <= DIRECT_BYTES:
            self._reduce_directly(staged.view(-1), op, f"all-reduce of {what}")
        else:
            work = self._guard(
                lambda: dist.all_reduce(staged, _OPS[op], group=self._group, async_op=True), f"all-reduce of {what}"
            )
            self._wait(work, f"all-reduce of {what}")
        if staged is not tensor:
            tensor.copy_(staged)
        return tensor

    def _reduce_directly(self, flat: Tensor, op: Op, what: str) -> None:
        """In place, in two rounds: everybody adds up a share of the numbers, in the workers' order, and tells all.

        As many bytes as around a ring, which takes 2 (W - 1) rounds: that is what counts where links are busy.
        """
        shares = list(torch.tensor_split(flat, self.num_workers))
        mine = shares[self.worker]
        arrived = flat.new_empty((self.num_workers, mine.numel()))
        arrived[self.worker] = mine
        self._exchange(shares, list(arrived), what)
        mine.copy_(_REDUCE[op](arrived))
        self._exchange([mine] * self.num_workers, shares, what)

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], what: str) -> None:
        """One message to and from every peer, all at once, not counted."""
        pending = Pending(self, what)
        peers = [peer for peer in range(self.num_workers) if peer != self.worker]
        receives = [(peer, _as_bytes(incoming[peer])) for peer in peers if incoming[peer].numel()]
        sends = [(peer, _as_bytes(outgoing[peer])) for peer in peers if outgoing[peer].numel()]
        self._start(pending, receives, sends, in_turns=False)
        pending.wait()

    def all_gather(self, tensor: Tensor, kind: str, what: str) -> Tensor:
        """Every worker's tensor, stacked: [num_workers, *shape]. Shapes are equal on all workers."""
        if self.num_workers == 1:
            return tensor.unsqueeze(0).clone()
        staged = self._staged(tensor.contiguous(), copy=True)
        gathered = torch.empty((self.num_workers, *tensor.shape), dtype=tensor.dtype, device=staged.device)
        if tensor.numel():
            self._count(kind, tensor)
            places, part = [_as_bytes(place) for place in gathered], _as_bytes(staged)
            work = self._guard(
                lambda: dist.all_gather(places, part, group=self._group, async_op=True), f"all-gather of {what}"
            )
            self._wait(work, f"all-gather of {what}")
        return gathered.to(tensor.device)

    def broadcast(self, tensor: Tensor, source: int, kind: str, what: str) -> Tensor:
        """In place: every worker ends with the source's values."""
        if self.num_workers == 1 or not tensor.numel():
            return tensor
        assert tensor.is_contiguous()
        if self.worker == source:
            self._count(kind, tensor)
        staged = self._staged(tensor, copy=True)
        data = _as_bytes(staged)
        name = f"broadcast of {what} from worker {source}"
        work = self._guard(lambda: dist.broadcast(data, source, group=self._group, async_op=True), name)
        self._wait(work, name)
        if staged is not tensor:
            tensor.copy_(staged)
        return tensor

    def barrier(self, what: str) -> None:
        """Returns when every worker has come here."""
        if self.num_workers == 1:
            return
        # An all-reduce of one number: dist.barrier has no deadline of its own on every backend.
        token = torch.zeros(1, device=self.device if self.backend == "nccl" else "cpu")
        work = self._guard(lambda: dist.all_reduce(token, group=self._group, async_op=True), f"barrier {what}")
        self._wait(work, f"barrier {what}")

    def close(self) -> None:
        """Leaves the run. Call it when all is well; after a failure just end the process."""
        if self.backend is not None and dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    # -- inside -------------------------------------------------------------------------------------------------

    def _count(self, kind: str, tensor: Tensor) -> None:
        assert kind in self.sent, f"unknown byte class {kind}"
        self.sent[kind] += tensor.numel() * tensor.element_size()

    def _staged(self, tensor: Tensor, copy: bool) -> Tensor:
        """The tensor where the backend can read or write it: NCCL sees GPU memory only, gloo and MPI host memory."""
        wanted = self.device.type if self.backend == "nccl" else "cpu"
        if tensor.device.type == wanted:
            return tensor
        pinned = wanted == "cpu" and tensor.device.type == "cuda"
        place = self.device if wanted != "cpu" else torch.device("cpu")
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, device=place, pin_memory=pinned)
        if copy:
            staged.copy_(tensor)
        return staged

    def _wait(self, work: Any, operation: str, peer: int | None = None) -> None:
        started = time.perf_counter_ns()
        limit = self._wait_limit
        if self.backend == "mpi":  # its wait knows no timeout
            self._guard(lambda: _poll(work, limit), operation, peer)
        self._guard(lambda: work.wait(timedelta(seconds=limit)), operation, peer)
        ended = time.perf_counter_ns()
        self.waited_seconds += (ended - started) / 1e9
        if self.on_wait is not None:
            self.on_wait(operation, started, ended)

    @property
    def _wait_limit(self) -> float:
        """Seconds of one wait: the survivors' asking around who is missing is part of the deadline."""
        return self.deadline_seconds - patience_seconds(self.deadline_seconds)

    def _guard(self, action: Callable[[], T], operation: str, peer: int | None = None) -> T:
        try:
            return action()
        except RuntimeError as error:
            raise self._lost(operation, peer, error) from error

    def _lost(self, operation: str, peer: int | None, error: RuntimeError) -> WorkerLost:
        reason = _first_sentence(str(error))
        if self._reports is None:
            lost = [] if peer is None else [peer]
        else:
            lost = self._reports.missing(operation, self.deadline_seconds, peer)
        names = "another worker" if not lost else " and ".join(f"worker {q}" for q in lost)
        return WorkerLost(
            f"worker {self.worker} lost {names} during {self._step}: {operation} did not succeed within the "
            f"deadline of {self.deadline_seconds:g} s ({reason})"
        )


def open_communicator(
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    backend: str = "auto",
    device: str | torch.device = "cpu",
) -> Communicator:
    """Joins the run that the environment describes (weft's launcher or torchrun); alone where there is none.

    The deadline bounds every wait of the run, including this one. `backend` is auto, gloo, nccl or mpi; auto takes
    nccl where every worker of this host has a GPU of its own, gloo otherwise.
    """
    num_workers = int(os.environ.get("WORLD_SIZE", "1"))
    device = _own_device(torch.device(device))
    if num_workers == 1 and backend in ("auto", "gloo", "nccl"):
        return Communicator.alone(device)
    backend = _choose_backend(backend, device)
    deadline = timedelta(seconds=deadline_seconds)
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        if backend == "mpi":  # MPI knows the ranks itself and has no store
            dist.init_process_group("mpi")
            return Communicator(dist.get_rank(), dist.get_world_size(), device, deadline_seconds, "mpi")
        store, worker, num_workers = next(rendezvous("env://", timeout=deadline))
        dist.init_process_group(
            backend,
            store=PrefixStore("weft", store),
            rank=worker,
            world_size=num_workers,
            timeout=deadline,
            device_id=device if backend == "nccl" else None,
        )
    except ValueError as error:
        raise UserError(
            f"the environment does not describe a run ({_first_sentence(str(error))}): start workers with "
            "'weft train --workers N' or with torchrun"
        ) from error
    except RuntimeError as error:
        worker = int(os.environ.get("RANK", "-1"))
        raise WorkerLost(
            f"worker {worker} could not join the run at {where} during start: not all {num_workers} workers met "
            f"within the deadline of {deadline_seconds:g} s ({_first_sentence(str(error))})"
        ) from error
    reports = Reports(store, worker, num_workers)
    return Communicator(worker, num_workers, device, deadline_seconds, backend, reports)


def _own_device(device: torch.device) -> torch.device:
    """This worker's GPU where 'cuda' without a number was asked for."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but this machine has no usable GPU: use device 'cpu'")
    if ":" not in str(device):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _choose_backend(backend: str, device: torch.device) -> str:
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }
    if backend == "auto":
        local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
        own_gpu = device.type == "cuda" and local_workers <= torch.cuda.device_count()
        return "nccl" if own_gpu and available["nccl"] else "gloo"
    if backend not in available:
        raise unknown("communication backend", backend, ["auto", *available])
    if not available[backend]:
        raise UserError(f"this build of torch has no '{backend}' backend: use 'auto' or install one that has")
    if backend == "nccl" and device.type != "cuda":
        raise UserError("backend 'nccl' moves GPU tensors only: use device 'cuda', or backend 'gloo'")
    return backend


def _poll(work: Any, limit_seconds: float) -> None:
    until = time.monotonic() + limit_seconds
    while not work.is_completed():
        if time.monotonic() > until:
            raise RuntimeError("timed out")
        time.sleep(1e-4)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as a flat uint8 tensor, so that any dtype travels on any backend."""
    assert tensor.is_contiguous(), "a message is contiguous"
    return tensor.detach().reshape(-1).view(torch.uint8)


def _first_sentence(text: str) -> str:
    lines = text.strip().splitlines()
    if not lines:
        return "no reason given"
    # Gloo begins with a source line and ends with advice.
    text = re.sub(r"^\[\S*\]\s*", "", lines[0].strip()).split(". This is typically", 1)[0]
    return text.rstrip(".!")
