"""Vertex intervals: a server's vertices, divided into ranges of about equal work."""

from collections.abc import Iterator

import torch

from weft.comm import Communicator
from weft.partitioning import Shard


class Intervals:
    """The intervals of one server, and the bounds of all servers' intervals. Creating it is a collective operation."""

    def __init__(self, shard: Shard, comm: Communicator, count: int) -> None:
        self.comm, self.num_rows = comm, shard.num_nodes
        work = shard.local.degrees() + shard.remote.degrees() + 1
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), work.cumsum(0)])
        targets = torch.arange(1, count, dtype=torch.int64) * int(ends[-1]) // count
        inner = torch.searchsorted(ends, targets)
        self.bounds = torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.tensor([shard.num_nodes])])
        self.all_bounds = comm.all_gather(self.bounds, "control", "bounds of intervals")  # [W, I + 1]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def rows(self, interval: int) -> slice:
        return slice(int(self.bounds[interval]), int(self.bounds[interval + 1]))
