"""The graph in blocks of consecutive vertices, each small enough for one worker's memory.

Block b is handled by worker b mod W, in round b // W. So what workers do in one round, taken in their order, follows on
what they did in the round before: whoever collects it (a part, a hash of the graph) gets vertices in ascending order.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import UserError
from weft.external.job import Budget
from weft.external.native import native
from weft.external.source import EdgeFiles
from weft.graph.files import Array
from weft.graph.progress import progress

MAX_CELLS = 1 << 16  # borders lie between cells of equally many vertices, so that a table says where a vertex belongs
REDUCE_VALUES = 1 << 22  # degrees are summed over the workers in pieces


def count_degrees(comm: Communicator, edges: EdgeFiles, budget: Budget, num_nodes: int | None) -> Array:
    """The in-degree of every vertex, int32 [N], the same on all workers; N is the largest id + 1 if nobody says."""
    degrees, highest, ends = np.zeros(num_nodes or 0, np.int32), -1, 0
    span = edges.span(comm.worker, comm.num_workers)
    with progress("counting edges", len(span)) as advance:
        for chunk in edges.read(span, budget.chunk_edges):
            if num_nodes is None and chunk.src.size:
                highest = max(highest, int(chunk.src.max()), int(chunk.dst.max()))
                degrees = _at_least(degrees, highest + 1)
            native().count_edges(chunk.src, chunk.dst, budget.both_ways, degrees)
            loops = int((chunk.src == chunk.dst).sum()) if budget.both_ways else 0
            ends += chunk.src.size * (2 if budget.both_ways else 1) - loops
            advance(chunk.amount)
    if num_nodes is None:
        num_nodes = int(comm.all_reduce(torch.tensor([highest + 1]), "control", "the number of vertices", "max"))
        degrees = _at_least(degrees, num_nodes)[:num_nodes]
    for begin in range(0, num_nodes, REDUCE_VALUES):
        comm.all_reduce(torch.from_numpy(degrees[begin : begin + REDUCE_VALUES]), "topology", "degrees")
    total = int(comm.all_reduce(torch.tensor([ends]), "control", "the number of edges"))
    if int(degrees.sum(dtype=np.int64)) != total:
        raise UserError("a vertex has 2^31 in-edges or more, which is beyond what weft can count: leave it out")
    return degrees


def _at_least(degrees: Array, count: int) -> Array:
    if degrees.size >= count:
        return degrees
    grown = np.zeros(max(count, 2 * degrees.size), np.int32)
    grown[: degrees.size] = degrees
    return grown


@dataclass(frozen=True)
class Blocks:
    """W blocks in each of several rounds; blocks may be empty."""

    borders: Array  # int64 [blocks + 1], vertices
    num_workers: int
    cell_shift: int  # a vertex lies in cell id >> cell_shift; borders are borders of cells

    @property
    def num_rounds(self) -> int:
        return (self.borders.size - 1) // self.num_workers

    @property
    def num_nodes(self) -> int:
        return int(self.borders[-1])

    def span(self, round_number: int, worker: int) -> range:
        """The vertices of one block."""
        block = round_number * self.num_workers + worker
        return range(int(self.borders[block]), int(self.borders[block + 1]))

    @property
    def groups(self) -> list[range]:
        """Blocks as groups that can be dealt: worker after worker, each one's rounds in order."""
        return [range(worker * self.num_rounds, (worker + 1) * self.num_rounds) for worker in range(self.num_workers)]

    @cached_property
    def group_of_cell(self) -> Array:
        """int32 [cells]"""
        block = np.arange(self.borders.size - 1)
        group = (block % self.num_workers) * self.num_rounds + block // self.num_workers
        cells = -(-self.borders >> self.cell_shift)  # the last block may end within a cell
        return np.repeat(group, np.diff(cells)).astype(np.int32)


def make_blocks(degrees: Array, budget: Budget) -> Blocks:
    """As many rounds as it takes for blocks to fit into memory; a single vertex is never divided."""
    num_nodes, workers = degrees.size, budget.num_workers
    shift = max(0, (num_nodes - 1).bit_length() - MAX_CELLS.bit_length() + 1)
    first = np.arange(0, num_nodes, 1 << shift)
    rows = np.diff(first, append=num_nodes)
    edges = np.add.reduceat(degrees, first, dtype=np.int64) if num_nodes else rows
    cost = np.cumsum(edges * budget.block_bytes_per_edge + rows * budget.block_bytes_per_row)
    total = int(cost[-1]) if num_nodes else 0
    rounds = max(1, -(-total // (workers * budget.room(num_nodes))))
    targets = total * np.arange(1, rounds * workers) // (rounds * workers)
    inner = np.minimum(np.searchsorted(cost, targets, "right") << shift, num_nodes)
    return Blocks(np.concatenate([[0], inner, [num_nodes]]), workers, shift)
