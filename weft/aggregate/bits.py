"""Which rows get how many bits: the least variance for the time that it takes, channel by channel.

A row that spans `s` and is multiplied by coefficients `a` adds the variance sum(a^2) * D / 6 * s^2 / (2^b - 1)^2 when
it travels with b bits. All rows of a channel are equally long, so for a given number of bytes the best choice gives
8 bits to the rows of the largest weight, 4 to those that follow and 2 to the rest; how many of each is found by
bisection. What remains is the time of the slowest channel, a number, and that is scanned. Each worker knows its own
channels only; what it tells the others are variances and times for each point of the scan.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.kernels import packed_bytes

SCAN, REFINE, REFINEMENTS = 257, 65, 2
ERROR = {2: 1 / 9, 4: 1 / 225, 8: 1 / 65025}  # 1 / (2^b - 1)^2

Gather = Callable[[Tensor], Tensor]  # what this worker has to what all workers have, stacked


@dataclass(frozen=True)
class Channel:
    """One worker's message to another: seconds are latency + seconds_per_byte * bytes."""

    weights: Tensor  # float64 [R], variance of each row at a step of its whole span
    columns: int  # of each row
    latency: float
    seconds_per_byte: float


Problem = Sequence[Channel]  # the messages of one exchange that leave this worker: the slowest of all sets its time


class _Ranked:
    """All channels of all problems side by side: C of them that carry rows, those in the order of their weight."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.num_problems = len(problems)
        used = [(at, channel) for at, problem in enumerate(problems) for channel in problem if channel.weights.numel()]
        channels = [channel for _, channel in used]

        def column(values: Iterable[float], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(list(values), dtype=dtype)[:, None]

        self.problem = torch.tensor([at for at, _ in used], dtype=torch.int64)
        self.rows = column(channel.weights.numel() for channel in channels)
        self.latency = column((channel.latency for channel in channels), torch.float64)
        self.seconds_per_byte = column((channel.seconds_per_byte for channel in channels), torch.float64)
        self.lowest, wide, wider = (column(packed_bytes(channel.columns, b) for channel in channels) for b in (2, 4, 8))
        self.wide, self.wider = wide - self.lowest, wider - self.lowest
        self.orders = [torch.argsort(channel.weights, descending=True, stable=True) for channel in channels]
        # Weights of the first rows of each channel, none to all of them, added up: the next channel's follow.
        nothing = torch.zeros(1, dtype=torch.float64)
        sums = [
            torch.cat([nothing, c.weights[order].cumsum(0)]) for c, order in zip(channels, self.orders, strict=True)
        ]
        self.sums = torch.cat([*sums, nothing])
        self.first = torch.cumsum(self.rows + 1, 0) - self.rows - 1

    def weights(self) -> Tensor:
        """The variance of each problem at a step of the rows' whole spans, float64 [P]."""
        return self._total(self.sums[self.first + self.rows]).squeeze(1)

    def shortest_and_longest(self) -> tuple[Tensor, Tensor]:
        """Seconds of each problem with 2 bits for every row, and with 8, float64 [P] each."""
        nothing = torch.zeros_like(self.rows)
        shortest, longest = (self._most(self._seconds(eights, nothing)).squeeze(1) for eights in (nothing, self.rows))
        return shortest, longest

    def evaluate(self, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Variance and time of the best choices for each problem within each of some times, all [P, T]."""
        counts = self.counts(limits)
        return self._total(self._variance(*counts)), self._most(self._seconds(*counts))

    def counts(self, limits: Tensor) -> tuple[Tensor, Tensor]:
        """How many rows of each channel get 8 bits, and how many 4, so that it ends in time; int64 [C, T]."""
        spare = (limits[self.problem] - self.latency) / self.seconds_per_byte - self.rows * self.lowest
        spare = (spare + 1e-6).clamp(min=0).floor().to(torch.int64)
        # Gains of one more row at 8 bits fall, those of the rows at 4 that it costs rise: the best number is where
        # they meet, which bisection finds.
        low, high = torch.zeros_like(spare), torch.minimum(spare // self.wider, self.rows)
        while bool((low < high).any()):
            middle = (low + high) // 2
            more = torch.minimum(middle + 1, self.rows)
            better = self._variance(more, self._fours(more, spare)) < self._variance(middle, self._fours(middle, spare))
            low, high = torch.where((low < high) & better, middle + 1, low), torch.where(better, high, middle)
        return low, self._fours(low, spare)

    def bits(self, limits: Tensor) -> list[Tensor]:
        """Of every row of each channel, uint8."""
        eights, fours = (counts.squeeze(1).tolist() for counts in self.counts(limits[:, None]))
        found = []
        for order, eight, four in zip(self.orders, eights, fours, strict=True):
            ranked = torch.full_like(order, 2, dtype=torch.uint8)
            ranked[:eight], ranked[eight : eight + four] = 8, 4
            found.append(torch.empty_like(ranked).index_copy_(0, order, ranked))
        return found

    def _fours(self, eights: Tensor, spare: Tensor) -> Tensor:
        # Rows so narrow that 2 bits save nothing take 4 of them for free.
        affordable = torch.where(self.wide > 0, (spare - eights * self.wider) // self.wide.clamp(min=1), self.rows)
        return torch.minimum(affordable, self.rows - eights).clamp(min=0)

    def _variance(self, eights: Tensor, fours: Tensor) -> Tensor:
        first, second = self.sums[self.first + eights], self.sums[self.first + eights + fours]
        total = self.sums[self.first + self.rows]
        return first * ERROR[8] + (second - first) * ERROR[4] + (total - second) * ERROR[2]

    def _seconds(self, eights: Tensor, fours: Tensor) -> Tensor:
        num_bytes = self.rows * self.lowest + eights * self.wider + fours * self.wide
        return self.latency + self.seconds_per_byte * num_bytes

    def _total(self, values: Tensor) -> Tensor:
        return torch.zeros(self.num_problems, values.shape[1], dtype=values.dtype).index_add_(0, self.problem, values)

    def _most(self, values: Tensor) -> Tensor:
        none = torch.zeros(self.num_problems, values.shape[1], dtype=values.dtype)
        return none.scatter_reduce_(0, self.problem[:, None].expand_as(values), values, "amax")


def _alone(values: Tensor) -> Tensor:
    return values[None]


def assign(problems: Sequence[Problem], fidelity: float, gather: Gather = _alone) -> list[list[Tensor]]:
    """Bits of every row that minimise, in each problem, fidelity * variance + (1 - fidelity) * time.

    Both are scaled to run from 0 to 1 between all rows at 8 bits and all at 2. Every worker, with as many problems,
    decides alike: variances of all workers add up, and the slowest of them sets the time.
    """
    if not problems:
        return []
    ranked = _Ranked(problems)
    ends = gather(torch.stack([ranked.weights(), *ranked.shortest_and_longest()]))
    weights, shortest, longest = ends[:, 0].sum(0), ends[:, 1].amax(0), ends[:, 2].amax(0)
    least, worst = weights[:, None] * ERROR[8], weights[:, None] * ERROR[2]

    def cost(limits: Tensor) -> Tensor:
        found = gather(torch.stack(ranked.evaluate(limits)))
        variance, time = found[:, 0].sum(0), found[:, 1].amax(0)
        spread = _share(variance, least, worst)
        return fidelity * spread + (1 - fidelity) * _share(time, shortest[:, None], longest[:, None])

    low, high, points = shortest, longest, SCAN
    best = shortest
    for _ in range(1 + REFINEMENTS):
        steps = torch.linspace(0, 1, points, dtype=torch.float64)
        limits = low[:, None] + (high - low)[:, None] * steps
        best = limits.gather(1, cost(limits).argmin(1, keepdim=True)).squeeze(1)
        step = (high - low) / (points - 1)
        low, high, points = torch.maximum(shortest, best - step), torch.minimum(longest, best + step), REFINE
    made = iter(ranked.bits(best))
    nothing = torch.empty(0, dtype=torch.uint8)
    return [[next(made) if channel.weights.numel() else nothing for channel in problem] for problem in problems]


def _share(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where a value lies between two others; 0 where they are the same."""
    return torch.where(high > low, (value - low) / (high - low).clamp(min=1e-300), 0.0)
