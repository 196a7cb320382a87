"""How fast each worker reaches each other one, measured while all of them talk at once, as they do in training."""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm.communicator import Communicator

_SMALL, _FIRST, _MOST = 256, 1 << 16, 1 << 22  # bytes of the messages that are timed
_AIM_SECONDS = 0.04
_ROUNDS = 5


@dataclass(frozen=True)
class Channels:
    """A message of n bytes from worker p to worker q takes latency[p, q] + n * seconds_per_byte[p, q]."""

    latency: Tensor  # float64 [W, W]
    seconds_per_byte: Tensor


def measure_channels(comm: Communicator) -> Channels:
    """Everybody sends to everybody, small messages and then large ones; all workers get the same answer."""
    quick = _fastest(comm, _SMALL)
    trial = _fastest(comm, _FIRST)
    slowest = torch.tensor([float(trial.max())], dtype=torch.float64)
    comm.all_reduce(slowest, "control", "channel times", "max")
    size = int(min(_MOST, max(_FIRST, _FIRST * _AIM_SECONDS / max(float(slowest), 1e-6))))
    large = _fastest(comm, size)
    mine = torch.stack([quick, _without_noise(((large - quick) / size).clamp(min=1e-12), comm.worker)])
    # What a worker has timed is what came to it: row q of its answer is the channel from q.
    arrived = comm.all_gather(mine, "control", "channel times")
    return Channels(arrived[:, 0].T.contiguous(), arrived[:, 1].T.contiguous())


def _without_noise(rates: Tensor, own: int) -> Tensor:
    """Channels that differ by less than a factor of two from the middle one are taken to be as fast as that."""
    others = [rate for peer, rate in enumerate(rates.tolist()) if peer != own]
    if not others:
        return rates
    middle = statistics.median(others)
    return torch.where((rates < 2 * middle) & (rates > middle / 2), middle, rates)


def _fastest(comm: Communicator, size: int) -> Tensor:
    """Seconds until a message of that size is here from every peer, the best of some rounds, float64 [W]."""
    best = torch.full((comm.num_workers,), torch.inf, dtype=torch.float64)
    best[comm.worker] = 0.0
    others = [peer for peer in range(comm.num_workers) if peer != comm.worker]
    data = torch.zeros(size, dtype=torch.uint8)
    leaving = [data if peer in others else None for peer in range(comm.num_workers)]
    for _ in range(_ROUNDS):
        arriving = [torch.empty_like(data) if peer in others else None for peer in range(comm.num_workers)]
        comm.barrier("channels")
        started = time.perf_counter()
        pending = comm.post(leaving, arriving, "control", "channel probe")
        for peer in others:
            pending.wait_for(peer)
            best[peer] = min(float(best[peer]), time.perf_counter() - started)
        pending.wait()
    return best
