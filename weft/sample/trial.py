"""What is decided by trial before training: minibatches of the first epoch are drawn, and their vertices counted."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.sample.book import PartitionBook
from weft.sample.counted import counted_once
from weft.sample.sampler import Sampler

MOST_BATCHES = 16  # that a trial draws, and of which a macrobatch consists where its size is left to weft
SATURATED = 0.98  # twice as many minibatches must fetch fewer rows each than this share, or they are not joined


@dataclass
class Growth:
    """Rows of other workers that 1, 2, 4, ... minibatches want together, on average over workers."""

    batches: list[int] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # with all hops
    shorter: list[float] = field(default_factory=list)  # without the last


class Trial:
    """Some minibatches of the first epoch, drawn to see what they are like; all workers take part in every call."""

    def __init__(self, sampler: Sampler, book: PartitionBook, comm: Communicator) -> None:
        self._book, self._comm = book, comm
        self.batches = sampler.draw(1, range(min(MOST_BATCHES, sampler.steps)))

    def growth(self) -> Growth:
        """How the rows that minibatches want of other workers (of all, where there is one) grow with their number."""
        growth = Growth()
        counts: list[tuple[int, int]] = []
        seen = torch.zeros(2, self._book.num_nodes, dtype=torch.bool)
        own = self._book.own
        for number, batch in enumerate(self.batches, 1):
            seen[0, batch.nodes.long()] = True
            seen[1, batch.nodes[: batch.sizes[-2]].long()] = True
            if number & (number - 1) == 0 or number == len(self.batches):
                mine = seen[:, own.start : own.stop].sum(1) if self._comm.num_workers > 1 else torch.zeros(2)
                whole, shorter = (seen.sum(1) - mine).long().tolist()
                growth.batches.append(number)
                counts.append((whole, shorter))
        total = torch.tensor(counts, dtype=torch.float64) / self._comm.num_workers
        self._comm.all_reduce(total, "control", "rows that minibatches want")
        growth.whole, growth.shorter = total[:, 0].tolist(), total[:, 1].tolist()
        return growth

    def sizes(self) -> tuple[int, int]:
        """How many vertices minibatches have, with all hops and without the last: the same for any placement."""
        sizes = [batch.sizes[-2:] for batch in self.batches]
        counted = counted_once(self._book, self._comm, [batch.nodes for batch in self.batches], sizes)
        found = torch.zeros(2, dtype=torch.int64)
        for (shorter, _), mine in zip(sizes, counted, strict=True):
            found += torch.stack([mine.sum(), mine[:shorter].sum()])
        all_hops, without_last = self._comm.all_reduce(found, "control", "sizes of minibatches").tolist()
        return all_hops, without_last

    def hottest(self, room: int, without_last_hop: bool) -> Tensor:
        """The `room` vertices of other workers that minibatches read most often, int32 positions, ascending."""
        counts = torch.zeros(self._book.num_nodes, dtype=torch.int32)
        for batch in self.batches:
            nodes = batch.nodes[: batch.sizes[-2]] if without_last_hop else batch.nodes
            counts.index_add_(0, nodes.long(), torch.ones(nodes.numel(), dtype=torch.int32))
        counts[self._book.own.start : self._book.own.stop] = 0
        found = counts.nonzero().squeeze(1)
        order = torch.argsort(counts[found], descending=True, stable=True)
        return found[order[:room]].sort().values.int()


def choose_macrobatch_size(growth: Growth, row_bytes: int, memory_bytes: int) -> int:
    """How many minibatches to fetch together: twice as many while that saves rows, and fits in memory."""
    chosen = 1
    for at in range(1, len(growth.batches)):
        number, rows = growth.batches[at], growth.whole[at]
        per_batch, before = rows / number, growth.whole[at - 1] / growth.batches[at - 1]
        if number > MOST_BATCHES or 2 * rows * row_bytes > memory_bytes or per_batch > SATURATED * before:
            break
        chosen = number
    return chosen


def caching_pays(whole: int, shorter: int, reads_own: bool) -> bool:
    """Whether minibatches read fewer rows where the last hop is replaced by cached aggregates of the one before.

    It changes what is learned, so it is decided by what minibatches are, not by which of their rows travel.
    """
    return shorter * (2 if reads_own else 1) < whole
