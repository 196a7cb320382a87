"""Which rows go to which worker: built once for a shard, used as it is for values and transposed for gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from weft.comm.communicator import Communicator

Rows = Tensor | slice  # int64 [R], or a plain slice with start and stop


def num_rows(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else rows.numel()


@dataclass(frozen=True)
class Route:
    """This worker's part of a linear map H from all workers' x [num_in, D] to all workers' y [num_out, D].

    y[recv_rows[q]] += (worker q's x)[its send_rows for us], summed over q, oneself included.
    """

    send_rows: tuple[Rows, ...]  # one per worker: rows of our x that it needs
    recv_rows: tuple[Rows, ...]  # one per worker: rows of our y that its rows are added to
    num_in: int
    num_out: int

    def transpose(self) -> "Route":
        """The transposed map: <H x, y> = <x, H^T y>."""
        return self._transposed

    @cached_property
    def _transposed(self) -> "Route":
        return Route(self.recv_rows, self.send_rows, self.num_out, self.num_in)

    @cached_property
    def tiles(self) -> bool:
        """Received rows are slices that cover y exactly once: it can be written without being cleared first."""
        at = 0
        spans = [rows for rows in self.recv_rows if isinstance(rows, slice)]
        if len(spans) < len(self.recv_rows):
            return False
        for span in sorted((s for s in spans if s.stop > s.start), key=lambda s: int(s.start)):
            if span.start != at:
                return False
            at = span.stop
        return bool(at == self.num_out)

    @cached_property
    def overlaps(self) -> bool:
        """Two peers' received rows may meet (so arrivals are added, never written over each other)."""
        spans = [rows for rows in self.recv_rows if isinstance(rows, slice) and rows.stop > rows.start]
        if len(spans) < sum(num_rows(rows) > 0 for rows in self.recv_rows):
            return True
        spans.sort(key=lambda s: int(s.start))
        return any(b.start < a.stop for a, b in pairwise(spans))

    def between(self, to: int, sent: Rows, source: int, received: int) -> "Route":
        """The part of this route that takes `sent` rows to one worker and `received` rows, a block, from another."""
        nothing = slice(0, 0)
        workers = range(len(self.send_rows))
        return Route(
            tuple(sent if worker == to else nothing for worker in workers),
            tuple(slice(0, received) if worker == source else nothing for worker in workers),
            self.num_in,
            received,
        )

    def num_sent(self, worker: int) -> int:
        """Rows that this worker, whose number is `worker`, sends to others."""
        return sum(num_rows(rows) for peer, rows in enumerate(self.send_rows) if peer != worker)


def build_route(comm: Communicator, halo_rows: Tensor, halo_counts: Sequence[int], num_rows: int) -> Route:
    """Asks every owner for the rows that this worker's halo needs. A collective call.

    halo_rows int64 [H] are local ids at their owners, grouped by owner ascending, halo_counts[q] of them at worker q.
    The route takes x of the `num_rows` owned rows to y of the H halo slots.
    """
    assert len(halo_counts) == comm.num_workers and sum(halo_counts) == halo_rows.numel()
    halo_rows = halo_rows.to(device=comm.device, dtype=torch.int64)
    mine = torch.tensor(list(halo_counts), dtype=torch.int64, device=comm.device)
    asked = comm.all_gather(mine, "control", "halo sizes")[:, comm.worker].tolist()

    recv: list[slice] = []
    start = 0
    for count in halo_counts:
        recv.append(slice(start, start + int(count)))
        start += int(count)
    wanted = [halo_rows[span].contiguous() for span in recv]
    send = [torch.empty(int(count), dtype=torch.int64, device=comm.device) for count in asked]
    send[comm.worker] = wanted[comm.worker].clone()
    others = [peer != comm.worker for peer in range(comm.num_workers)]
    comm.post(
        [rows if other else None for rows, other in zip(wanted, others, strict=True)],
        [rows if other else None for rows, other in zip(send, others, strict=True)],
        "ids",
        "halo ids",
    ).wait()
    for peer, rows in enumerate(send):
        in_range = rows.numel() == 0 or (int(rows.min()) >= 0 and int(rows.max()) < num_rows)
        assert in_range, f"worker {peer} asks for rows that worker {comm.worker} does not have"
    return Route(tuple(_compact(rows) for rows in send), tuple(recv), num_rows, start)


def _compact(rows: Tensor) -> Rows:
    """A slice where the rows are consecutive: it takes no memory, and its rows can be sent without a copy."""
    if rows.numel() == 0:
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    steps_by_one = last - first + 1 == rows.numel() and bool((rows[1:] - rows[:-1] == 1).all())
    return slice(first, last + 1) if steps_by_one else rows
