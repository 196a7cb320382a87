"""Communication between workers: point-to-point messages, a few collectives, byte counts, a deadline on every wait.

Bytes are counted where they are handed to the network, by class, as payload:

- `post` counts every byte of every outgoing message (nothing is sent to oneself, and empty messages are not sent);
- `all_reduce` counts the tensor's bytes once per worker, `all_gather` the bytes this worker contributes, `broadcast`
  the tensor's bytes at its source: what a collective carries, not what its algorithm repeats;
- `barrier` counts nothing. With one worker nothing is ever counted.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from weft.comm.failure import Reports, first_sentence, patience_seconds
from weft.comm.pairwise import SMALLEST_BYTES, DeferredWork, PairwiseRound, PairwiseSender, partners
from weft.comm.pending import PendingMessages
from weft.comm.process import end_process, report_step
from weft.errors import WorkerLost

BYTE_CLASSES = ("ids", "topology", "features", "hidden_forward", "hidden_backward", "gradients", "control")
EPOCH_BYTE_CLASSES = BYTE_CLASSES[:-1]  # "control" is no part of an epoch's bytes
Op = Literal["sum", "max", "min"]
T = TypeVar("T")

DEFAULT_DEADLINE_SECONDS = 300.0
# A gloo message is one iovec to the socket and is counted in signed 32-bit numbers in places, and the kernel moves
# at most 2^31 - 4096 bytes a call: longer messages travel as several.
MAX_MESSAGE_BYTES = 1 << 30

DIRECT_BYTES = 4 << 20  # all-reduces of at most so many bytes take two rounds

_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
}
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Communicator:
    """One worker's connections to the others of its run. All workers make the same calls in the same order."""

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
        self.sent: dict[str, int] = dict.fromkeys(BYTE_CLASSES, 0)
        self.waited_seconds = 0.0  # blocked on peers, over all waits
        self.on_wait: Callable[[str, int, int], None] | None = None  # told of every wait: what, start and end (ns)
        self._step = "start"
        self._reports = reports
        self._group = group  # None: torch.distributed's own, of all workers
        # Messages between two workers are numbered per direction, and the number is their tag: several exchanges at a
        # time cannot mix, and workers that send nothing to each other need no common count.
        self._sent_count = [0] * num_workers
        self._received_count = [0] * num_workers
        self._pairwise: PairwiseSender | None = None  # made when the first large messages are sent
        self.flat_gradients: dict[tuple[int, ...], Tensor] = {}  # kept by all_reduce_gradients

    @classmethod
    def alone(
        cls, device: str | torch.device = "cpu", deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> "Communicator":
        """The communicator of a run with one worker: no network, no torch.distributed."""
        return cls(0, 1, torch.device(device), deadline_seconds)

    def sibling(self) -> "Communicator":
        """A communicator of the same workers with connections of its own, on host memory, for one other thread.

        A collective call. It counts its own bytes. Where there is one worker it is the communicator itself.
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
    ) -> PendingMessages:
        """Starts one message to and one from every peer: entry q is for peer q; None or an empty tensor is no message.

        Both sides must agree on the byte counts. Tensors are contiguous, of any dtype.
        """
        assert len(outgoing) == len(incoming) == self.num_workers, "one entry per worker"
        assert outgoing[self.worker] is None and incoming[self.worker] is None, "a worker sends nothing to itself"
        pending = PendingMessages(self._wait, what)
        receives: list[tuple[int, Tensor]] = []
        sends: list[tuple[int, Tensor]] = []
        for peer, tensor in enumerate(incoming):
            if tensor is not None and tensor.numel():
                landing = self._staged(tensor, copy=False)
                if landing is not tensor:
                    pending.staged[peer] = (landing, tensor)
                receives.append((peer, _as_bytes(landing)))
        for peer, tensor in enumerate(outgoing):
            if tensor is not None and tensor.numel():
                leaving = self._staged(tensor, copy=True)
                self._count(kind, leaving)
                sends.append((peer, _as_bytes(leaving)))
        pending.kept = [tensor for _, tensor in receives + sends]
        self._start(pending, receives, sends)
        return pending

    def _start(
        self,
        pending: PendingMessages,
        receives: list[tuple[int, Tensor]],
        sends: list[tuple[int, Tensor]],
        pairwise: bool = True,
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
            works = self._guard(lambda: dist.batch_isend_irecv(batch), f"starting {pending.what}", first)
            target = pending.receives if ops[0][0] else pending.sends
            target[first] = works
            for inward, peer, _, _ in ops:  # every receive completes with the group
                if inward:
                    pending.receives.setdefault(peer, works)
            return
        starts: dict[tuple[bool, int], list[Callable[[], Any]]] = {}
        for inward, peer, chunk, number in ops:
            begin: Callable[..., Any] = dist.irecv if inward else dist.isend
            # Gloo keeps high tags for its collectives; two workers never have 2^24 messages pending at once.
            start = partial(begin, chunk, peer, group=self._group, tag=number % (1 << 24))
            starts.setdefault((inward, peer), []).append(start)
        size = max(sum(data.numel() for _, data in messages) for messages in (receives, sends))
        if pairwise and self.num_workers > 2 and self.backend == "gloo" and size >= SMALLEST_BYTES:
            self._start_pairwise(pending, starts)
            return
        for (inward, peer), begins in starts.items():
            what = f"{'receiving' if inward else 'sending'} {pending.what}"
            works = [self._guard(begin, what, peer) for begin in begins]
            (pending.receives if inward else pending.sends)[peer] = works

    def _start_pairwise(
        self, pending: PendingMessages, starts: dict[tuple[bool, int], list[Callable[[], Any]]]
    ) -> None:
        """Leaves messages to a thread that starts them in pairwise rounds, first that with the next worker."""
        rounds = []
        for to, by in partners(self.worker, self.num_workers):
            round = PairwiseRound((to, by), starts.get((True, by), []), starts.get((False, to), []))
            if round.receives:
                pending.receives[by] = [DeferredWork(round.wait_received)]
            if round.sends:
                pending.sends[to] = [DeferredWork(round.wait_sent)]
            if round.receives or round.sends:
                rounds.append(round)
        if self._pairwise is None:
            self._pairwise = PairwiseSender(timedelta(seconds=self._wait_limit))
        self._pairwise.start(rounds)

    # -- collectives --------------------------------------------------------------------------------------------

    def all_reduce(
        self, tensor: Tensor, kind: str = "control", what: str = "values of the loop", op: Op = "sum"
    ) -> Tensor:
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
        """In place, in two rounds: a reduce-scatter in the workers' order, then an all-gather.

        It sends as many bytes as a ring, which takes 2 (W - 1) rounds; fewer rounds are faster where links are busy.
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
        pending = PendingMessages(self._wait, what)
        peers = [peer for peer in range(self.num_workers) if peer != self.worker]
        receives = [(peer, _as_bytes(incoming[peer])) for peer in peers if incoming[peer].numel()]
        sends = [(peer, _as_bytes(outgoing[peer])) for peer in peers if outgoing[peer].numel()]
        self._start(pending, receives, sends, pairwise=False)
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

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: object) -> None:
        """Leaves the run when all workers have come here.

        After an exception one worker of several says why in a sentence and ends its process, since the others, which
        wait for it, must notice. A worker that is alone raises the exception as any program does.
        """
        if self.num_workers == 1:
            return
        if failure is None:
            try:
                self.barrier("end")
                self.close()
                return
            except BaseException as error:
                failure = error
        end_process(failure)

    # -- internals ----------------------------------------------------------------------------------------------

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
        """Seconds of one wait. The time in which survivors find out who is missing is part of the deadline."""
        return self.deadline_seconds - patience_seconds(self.deadline_seconds)

    def _guard(self, action: Callable[[], T], operation: str, peer: int | None = None) -> T:
        try:
            return action()
        except RuntimeError as error:
            raise self._lost(operation, peer, error) from error

    def _lost(self, operation: str, peer: int | None, error: RuntimeError) -> WorkerLost:
        reason = first_sentence(str(error))
        if self._reports is None:
            lost = [] if peer is None else [peer]
        else:
            lost = self._reports.missing(operation, self.deadline_seconds, peer)
        names = "another worker" if not lost else " and ".join(f"worker {q}" for q in lost)
        return WorkerLost(
            f"worker {self.worker} lost {names} during {self._step}: {operation} did not succeed within the "
            f"deadline of {self.deadline_seconds:g} s ({reason})"
        )


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
