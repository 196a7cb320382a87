"""Where every vertex lives, in files that all workers map."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.comm import Communicator
from weft.graph.files import Array, create_npy
from weft.out_of_core.budget import pieces
from weft.out_of_core.growing import GrowingArray
from weft.partitioning.info import position_dtype

PIECE_ROWS = 1 << 20


@dataclass(frozen=True)
class Placement:
    """Where every vertex lives: all vertices part after part, within a part in ascending order of ids."""

    owner: Array  # int16 [N]
    position: Array  # int32 [N], mapped from a file
    order: Array  # int32 [N], the inverse, mapped
    starts: Array  # int64 [parts + 1]

    @property
    def num_parts(self) -> int:
        return self.starts.size - 1

    @property
    def num_nodes(self) -> int:
        return self.owner.size

    def members(self, part: int) -> Iterator[Array]:
        """The ids of a part's vertices in pieces, int64."""
        for begin, end in pieces(int(self.starts[part + 1] - self.starts[part]), PIECE_ROWS):
            first = int(self.starts[part])
            yield self.order[first + begin : first + end].astype(np.int64)


def place(comm: Communicator, owner: Array, num_parts: int, position: Path, order: Path) -> Placement:
    """Worker 0 writes both files, everybody maps them."""
    counts = np.zeros(num_parts, np.int64)
    for begin, end in pieces(owner.size, PIECE_ROWS):
        counts += np.bincount(owner[begin:end], minlength=num_parts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    if comm.worker == 0:
        _write_positions(owner, starts, position, order)
    comm.barrier("until positions are written")
    return Placement(owner, np.load(position, mmap_mode="r"), np.load(order, mmap_mode="r"), starts)


def _write_positions(owner: Array, starts: Array, position: Path, order: Path) -> None:
    dtype = position_dtype(owner.size)
    positions = GrowingArray(position, dtype)
    inverse = create_npy(order, owner.shape, np.dtype(dtype))
    taken = starts[:-1].copy()
    for begin, end in pieces(owner.size, PIECE_ROWS):
        by_part = np.argsort(owner[begin:end], kind="stable")
        places = np.empty(end - begin, dtype)
        first = 0
        for part, count in enumerate(np.bincount(owner[begin:end], minlength=taken.size)):
            here = by_part[first : first + count]
            places[here] = np.arange(taken[part], taken[part] + count)
            inverse[taken[part] : taken[part] + count] = begin + here
            taken[part] += count
            first += count
        positions.append(places)
    positions.close()
    if isinstance(inverse, np.memmap):
        inverse.flush()
