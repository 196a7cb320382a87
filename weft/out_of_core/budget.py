"""How much memory a worker may use, and how large the pieces are in which it works."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import UserError
from weft.out_of_core.edgedata import bytes_of

LEAST_ROOM = 0.25  # of the memory: what must remain for buffers beside what is kept for every vertex
_PARSED_TIME = 64  # bytes that the time of an edge takes at the most while text becomes a number
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """`512M`, `2G`, `1.5 GiB` or a number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise UserError(f"'{text}' is no amount of memory: write it as 512M or 2G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True)
class Budget:
    """How large the pieces are in which everything is handled, so that a worker stays within its memory.

    A worker keeps 6 bytes per vertex: its degree and its owner, later its owner and its position. The rest is for what
    is read, sorted, sent and received at one time; what arrives is counted as though all workers sent all they have to
    one. The interpreter and its libraries (some 300 MiB) come on top, as in every process.
    """

    memory_bytes: int
    num_workers: int
    carried: tuple[str, ...]  # what edges carry: "weight", "time"
    both_ways: bool  # every edge counts twice

    @property
    def chunk_edges(self) -> int:
        """Edges that are read at one time, before anything is known of the graph."""
        value = 8 + bytes_of(self.carried)  # an edge as it travels
        read = 16 + value  # as the file has it, at the most, and as int32
        read += _PARSED_TIME if "time" in self.carried else 0
        grouped = value * (1 + self.num_workers)
        return max(1, int(self.memory_bytes * LEAST_ROOM) // (read + grouped))

    @property
    def bucket_bytes_per_edge(self) -> int:
        data = bytes_of(self.carried)
        sorting = 12 + (8 + 2 * data if data else 0)  # pairs and rows; the order, and data as it came and as it goes
        cutting = (4 + data) * (2 + self.num_workers)
        return max(sorting, cutting)

    @property
    def bucket_bytes_per_row(self) -> int:
        return 24 + 8 * self.num_workers

    def room(self, num_nodes: int) -> int:
        """Bytes for buffers beside what is kept for every vertex."""
        kept = 6 * num_nodes
        room = self.memory_bytes - kept
        if room < LEAST_ROOM * self.memory_bytes:
            needed = -(-int(kept / (1 - LEAST_ROOM)) // (1 << 20))
            raise UserError(
                f"a worker keeps 6 bytes for each of {num_nodes:,} vertices and has {self.memory_bytes:,} bytes of "
                f"memory: give at least --memory {needed}M"
            )
        return room

    def rows_at_once(self, num_nodes: int, row_bytes: int) -> int:
        """Rows of features, labels or masks that are read and sent at one time."""
        return max(1, self.room(num_nodes) // (max(1, row_bytes) * (3 + self.num_workers)))


def pieces(total: int, step: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of pieces of at most `step` that make up 0..total."""
    for begin in range(0, total, step):
        yield begin, min(total, begin + step)
