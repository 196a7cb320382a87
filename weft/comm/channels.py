"""Latency and bandwidth between each pair of workers, measured while all of them send, as they do in training."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm.communicator import Communicator
from weft.comm.pairwise import partners

_SMALL, _FIRST, _MOST = 256, 1 << 16, 1 << 22  # bytes of the messages that are timed
_AIM_SECONDS = 0.04
_ROUNDS = 5
_JITTER_SECONDS = 1e-3  # by which a worker that waits for a processor is late


@dataclass(frozen=True)
class Channels:
    """A message of n bytes from worker p to worker q takes latency[p, q] + n * seconds_per_byte[p, q]."""

    latency: Tensor  # float64 [W, W]
    seconds_per_byte: Tensor


def measure_channels(comm: Communicator, largest_bytes: int = _MOST) -> Channels:
    """Times small messages and then large ones between all pairs of workers; all workers get the same result.

    `largest_bytes`: the largest message that this worker will send, which bounds those that are timed.
    """
    quick = _fastest(comm, _SMALL)
    large, size = _fastest(comm, _FIRST), _FIRST
    limits = torch.tensor([float(large.max()), float(largest_bytes)], dtype=torch.float64)
    slowest, largest = comm.all_reduce(limits, "control", "channel times", "max").tolist()
    wanted = int(min(_MOST, largest, _FIRST * _AIM_SECONDS / max(slowest, 1e-6)))
    if wanted > _FIRST:
        large, size = _fastest(comm, wanted), wanted
    sharing = comm.num_workers - 1  # in training a link carries the messages of all channels that meet at it
    rates = ((large - quick) / size).clamp(min=1e-12) * sharing
    # A worker times what it receives: row q of its result is the channel from worker q.
    arrived = comm.all_gather(torch.stack([quick, rates]), "control", "channel times")
    return Channels(_alike(arrived[:, 0].T, _JITTER_SECONDS), _alike(arrived[:, 1].T, sharing * _JITTER_SECONDS / size))


def _alike(found: Tensor, jitter: float) -> Tensor:
    """Replaces by the median what differs from it by less than a factor of two, or by less than the jitter.

    Where all links are alike, as they mostly are, decisions that depend on them then repeat from run to run.
    """
    others = ~torch.eye(len(found), dtype=torch.bool)
    middle = found[others].median() if len(found) > 1 else torch.zeros(())
    near = ((found < 2 * middle) & (found > middle / 2)) | ((found - middle).abs() < jitter)
    return torch.where(near & others, middle, found)


def _fastest(comm: Communicator, size: int) -> Tensor:
    """Seconds until a message of that size has arrived from each peer, the least of some rounds, float64 [W].

    In a round each worker sends to one other and receives from one other, all at the same time.
    """
    best = torch.full((comm.num_workers,), torch.inf, dtype=torch.float64)
    best[comm.worker] = 0.0
    leaving, arriving = torch.zeros(2, size, dtype=torch.uint8)
    nobody: list[Tensor | None] = [None] * comm.num_workers
    for to, by in partners(comm.worker, comm.num_workers) * _ROUNDS:
        outgoing, incoming = list(nobody), list(nobody)
        outgoing[to], incoming[by] = leaving, arriving
        comm.barrier("channels")
        started = time.perf_counter()
        pending = comm.post(outgoing, incoming, "control", "channel probe")
        pending.wait_for(by)
        best[by] = min(float(best[by]), time.perf_counter() - started)
        pending.wait()
    return best
