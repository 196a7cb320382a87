"""What to partition and how, and how much memory that may take."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from weft.errors import UserError, unknown
from weft.graph.edgelist import EdgeColumns

METHODS = ("stream", "range", "hash")
MAX_PARTS = 2**15 - 1  # owners are int16
LEAST_ROOM = 0.25  # of the memory: what must remain for buffers beside what is kept for every vertex
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Job(BaseModel):
    """One partitioning; the workers get it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edges: tuple[Path, ...]
    parts: int
    method: str = "stream"
    seed: int = 0
    memory_bytes: int = 2 << 30  # of each worker
    passes: int = 3  # of `stream` over the vertices
    columns: EdgeColumns = EdgeColumns()
    header: bool | None = None
    features: Path | None = None
    labels: Path | None = None
    split: str | None = None
    num_nodes: int | None = None
    num_classes: int | None = None
    undirected: bool = False
    name: str = "graph"


def check_job(job: Job) -> None:
    if job.method not in METHODS:
        raise unknown("partition method for edge files", job.method, METHODS)
    if not 1 <= job.parts <= MAX_PARTS:
        raise UserError(f"{job.parts} parts were asked for: edge files are cut into 1 to {MAX_PARTS} parts")
    if job.memory_bytes < 1 or job.passes < 1:
        raise UserError("memory and passes are counted from 1: give more")


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
    weighted: bool
    both_ways: bool  # every edge counts twice

    @property
    def chunk_edges(self) -> int:
        """Edges that are read at one time, before anything is known of the graph."""
        value = 12 if self.weighted else 8  # an edge as it travels
        read = 16 + value  # as the file has it, at the most, and as int32
        grouped = value * (1 + self.num_workers)
        return max(1, int(self.memory_bytes * LEAST_ROOM) // (read + grouped))

    @property
    def block_bytes_per_edge(self) -> int:
        sorting = 28 if self.weighted else 12
        cutting = (8 + 4 * self.num_workers) * (2 if self.weighted else 1)
        return max(sorting, cutting)

    @property
    def block_bytes_per_row(self) -> int:
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
