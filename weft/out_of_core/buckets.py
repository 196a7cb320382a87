"""Edges in buckets by destination: ranges of consecutive vertices, each small enough for one worker's memory.

Bucket b is handled by worker b mod W, in round b // W. So what workers do in one round, taken in their order, follows
on what they did in the round before: what collects it (a part, a hash of the graph) gets vertices in ascending order.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.graph.files import Array
from weft.out_of_core.budget import Budget

MAX_CELLS = 1 << 16  # borders lie between cells of equally many vertices, so that a table says where a vertex belongs


@dataclass(frozen=True)
class Buckets:
    """W buckets in each of several rounds; buckets may be empty."""

    borders: Array  # int64 [buckets + 1], vertices
    num_workers: int
    cell_shift: int  # a vertex lies in cell id >> cell_shift; borders are borders of cells

    @property
    def num_rounds(self) -> int:
        return (self.borders.size - 1) // self.num_workers

    @property
    def num_nodes(self) -> int:
        return int(self.borders[-1])

    def span(self, round_number: int, worker: int) -> range:
        """The vertices of one bucket."""
        bucket = round_number * self.num_workers + worker
        return range(int(self.borders[bucket]), int(self.borders[bucket + 1]))

    @property
    def groups(self) -> list[range]:
        """Buckets as groups for an AllToAll: worker after worker, each one's rounds in order."""
        return [range(worker * self.num_rounds, (worker + 1) * self.num_rounds) for worker in range(self.num_workers)]

    @cached_property
    def group_of_cell(self) -> Array:
        """int32 [cells]"""
        bucket = np.arange(self.borders.size - 1)
        group = (bucket % self.num_workers) * self.num_rounds + bucket // self.num_workers
        cells = -(-self.borders >> self.cell_shift)  # the last bucket may end within a cell
        return np.repeat(group, np.diff(cells)).astype(np.int32)


def make_buckets(degrees: Array, budget: Budget) -> Buckets:
    """As many rounds as it takes for buckets to fit into memory; a single vertex is never divided."""
    num_nodes, workers = degrees.size, budget.num_workers
    shift = max(0, (num_nodes - 1).bit_length() - MAX_CELLS.bit_length() + 1)
    first = np.arange(0, num_nodes, 1 << shift)
    rows = np.diff(first, append=num_nodes)
    edges = np.add.reduceat(degrees, first, dtype=np.int64) if num_nodes else rows
    cost = np.cumsum(edges * budget.bucket_bytes_per_edge + rows * budget.bucket_bytes_per_row)
    total = int(cost[-1]) if num_nodes else 0
    rounds = max(1, -(-total // (workers * budget.room(num_nodes))))
    targets = total * np.arange(1, rounds * workers) // (rounds * workers)
    inner = np.minimum(np.searchsorted(cost, targets, "right") << shift, num_nodes)
    return Buckets(np.concatenate([[0], inner, [num_nodes]]), workers, shift)
