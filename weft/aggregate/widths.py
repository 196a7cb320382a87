"""Which rows get how many bits: the least variance for the time that it takes, channel by channel.

A row that spans `s` and is multiplied by coefficients `a` adds the variance sum(a^2) * D / 6 * s^2 / (2^b - 1)^2 when
it travels with b bits. All rows of a channel are equally long, so for a given number of bytes the best choice gives
8 bits to the rows of the largest weight, 4 to those that follow and 2 to the rest; how many of each is found by
bisection. What remains is the time of the slowest channel, a number, and that is scanned. Nothing is gathered in one
place: each worker knows its own channels, and only sums and maxima over the workers are exchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.kernels import packed_bytes

SCAN, REFINE, REFINEMENTS = 257, 65, 2
ERROR = {2: 1 / 9, 4: 1 / 225, 8: 1 / 65025}  # 1 / (2^b - 1)^2

Combine = Callable[[Tensor], Tensor]  # a vector of this worker's to that of all workers


@dataclass(frozen=True)
class Channel:
    """One worker's message to another: seconds are latency + seconds_per_byte * bytes."""

    weights: Tensor  # float64 [R], variance of each row at a step of its whole span
    width: int
    latency: float
    seconds_per_byte: float

    def seconds(self, num_bytes: Tensor) -> Tensor:
        return self.latency + self.seconds_per_byte * num_bytes

    def bytes_at(self, bits: int) -> int:
        return self.weights.numel() * packed_bytes(self.width, bits)


class _Ranked:
    """A channel with its rows in the order of their weight, and sums over the first of them."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.order = torch.argsort(channel.weights, descending=True, stable=True)
        self.sums = torch.cat([torch.zeros(1, dtype=torch.float64), channel.weights[self.order].cumsum(0)])
        lowest, self.wide, self.wider = (packed_bytes(channel.width, bits) for bits in (2, 4, 8))
        self.lowest, self.wide, self.wider = lowest, self.wide - lowest, self.wider - lowest

    def counts(self, seconds: Tensor) -> tuple[Tensor, Tensor]:
        """How many rows get 8 bits, and how many 4, so that the channel ends in time; int64, as `seconds`."""
        channel, rows = self.channel, self.channel.weights.numel()
        spare = (seconds - channel.latency) / channel.seconds_per_byte - rows * self.lowest
        spare = (spare + 1e-6).clamp(min=0).floor().to(torch.int64)
        # Gains of one more row at 8 bits fall, those of the rows at 4 that it costs rise: the best number is where
        # they meet, which bisection finds.
        low, high = torch.zeros_like(spare), (spare // self.wider).clamp(max=rows)
        while bool((low < high).any()):
            middle = (low + high) // 2
            better = self._variance((middle + 1).clamp(max=rows), spare) < self._variance(middle, spare)
            low = torch.where((low < high) & better, middle + 1, low)
            high = torch.where((low < high) & ~better, middle, high)
        return low, self._fours(low, spare)

    def _fours(self, eights: Tensor, spare: Tensor) -> Tensor:
        rows = self.channel.weights.numel()
        if self.wide == 0:  # so narrow that 2 bits save nothing
            return rows - eights
        return torch.minimum((spare - eights * self.wider) // self.wide, rows - eights).clamp(min=0)

    def _variance(self, eights: Tensor, spare: Tensor) -> Tensor:
        return self.variance(eights, self._fours(eights, spare))

    def variance(self, eights: Tensor, fours: Tensor) -> Tensor:
        first, second, total = self.sums[eights], self.sums[eights + fours], self.sums[-1]
        return first * ERROR[8] + (second - first) * ERROR[4] + (total - second) * ERROR[2]

    def num_bytes(self, eights: Tensor, fours: Tensor) -> Tensor:
        return self.channel.weights.numel() * self.lowest + eights * self.wider + fours * self.wide

    def bits(self, eights: int, fours: int) -> Tensor:
        ranked = torch.full((self.channel.weights.numel(),), 2, dtype=torch.uint8)
        ranked[:eights], ranked[eights : eights + fours] = 8, 4
        bits = torch.empty_like(ranked)
        bits[self.order] = ranked
        return bits


class Problem:
    """The messages of one exchange that leave this worker: whoever is slowest, of all workers, sets its time."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._ranked = [_Ranked(channel) for channel in channels if channel.weights.numel()]

    def weight(self) -> float:
        return sum(float(ranked.sums[-1]) for ranked in self._ranked)

    def seconds_at(self, bits: int) -> float:
        """With the same number of bits for every row."""
        ends = [r.channel.latency + r.channel.seconds_per_byte * r.channel.bytes_at(bits) for r in self._ranked]
        return max(ends, default=0.0)

    def judge(self, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Variance and time of the best choice within each of some times."""
        variance, time = torch.zeros_like(limits), torch.zeros_like(limits)
        for ranked in self._ranked:
            counts = ranked.counts(limits)
            variance += ranked.variance(*counts)
            time = torch.maximum(time, ranked.channel.seconds(ranked.num_bytes(*counts).double()))
        return variance, time

    def bits(self, limit: float) -> list[Tensor]:
        """Of every row of every channel, uint8."""
        found = []
        for ranked in self._ranked:
            eights, fours = ranked.counts(torch.tensor([limit], dtype=torch.float64))
            found.append(ranked.bits(int(eights), int(fours)))
        made = iter(found)
        return [
            next(made) if channel.weights.numel() else torch.empty(0, dtype=torch.uint8) for channel in self._channels
        ]


def _alone(values: Tensor) -> Tensor:
    return values


def assign(
    problems: Sequence[Problem], fidelity: float, total: Combine = _alone, most: Combine = _alone
) -> list[list[Tensor]]:
    """Bits of every row that minimise, in each problem, fidelity * variance + (1 - fidelity) * time.

    Both are scaled to run from 0 to 1 between all rows at 8 bits and all at 2. `total` and `most` sum, and take the
    maximum, over all workers, which decide alike; they are asked for all problems at once.
    """
    if not problems:
        return []
    ends = [[problem.seconds_at(2), problem.seconds_at(8)] for problem in problems]
    shortest, longest = most(torch.tensor(ends, dtype=torch.float64)).unbind(1)
    weights = total(torch.tensor([problem.weight() for problem in problems], dtype=torch.float64))
    least, worst = weights[:, None] * ERROR[8], weights[:, None] * ERROR[2]

    def judge(limits: Tensor) -> Tensor:
        pairs = [problem.judge(times) for problem, times in zip(problems, limits, strict=True)]
        variance = total(torch.stack([variance for variance, _ in pairs]))
        time = most(torch.stack([time for _, time in pairs]))
        spread = _share(variance, least, worst)
        return fidelity * spread + (1 - fidelity) * _share(time, shortest[:, None], longest[:, None])

    low, high, points = shortest, longest, SCAN
    best = shortest
    for _ in range(1 + REFINEMENTS):
        steps = torch.linspace(0, 1, points, dtype=torch.float64)
        limits = low[:, None] + (high - low)[:, None] * steps
        best = limits.gather(1, judge(limits).argmin(1, keepdim=True)).squeeze(1)
        step = (high - low) / (points - 1)
        low, high, points = torch.maximum(shortest, best - step), torch.minimum(longest, best + step), REFINE
    return [problem.bits(limit) for problem, limit in zip(problems, best.tolist(), strict=True)]


def _share(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where a value lies between two others; 0 where they are the same."""
    return torch.where(high > low, (value - low) / (high - low).clamp(min=1e-300), 0.0)
