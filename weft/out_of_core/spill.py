"""Edges on disk between the files and the parts: sent to buckets as they are read, then sorted bucket by bucket."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from weft.comm import Communicator
from weft.disk import writing
from weft.graph.files import Array
from weft.graph.progress import progress
from weft.out_of_core.all_to_all import AllToAll
from weft.out_of_core.buckets import Buckets
from weft.out_of_core.budget import Budget
from weft.out_of_core.edgedata import Carried, as_bytes, dtype_of, empty, pick
from weft.out_of_core.edgefiles import EdgeChunk, EdgeFiles
from weft.out_of_core.fingerprint import Fingerprint
from weft.out_of_core.native import native

NO_ORDER = np.empty(0, np.int64)


class Rows(NamedTuple):
    """The in-edges of a bucket's vertices, each row's sources ascending."""

    indptr: Array  # int64 [rows + 1]
    indices: Array  # int32 [E], global ids
    data: Carried  # what the edges carry, each [E]


class Spill:
    """This worker's buckets on disk: edges as they come, then sorted rows.

    Edges lie in lanes, one for each worker that sent them and direction: read one after another, they are in the order
    of the edge files, whatever the order in which they came.
    """

    def __init__(self, folder: Path, comm: Communicator, carried: tuple[str, ...]) -> None:
        self.stem = folder / f"buckets-{comm.worker}"
        self.stem.mkdir()
        self.lanes = 2 * comm.num_workers
        self.carried = carried

    def append(self, round_number: int, lane: int, arrays: list[Array]) -> None:
        for kind, array in zip(("pairs", *self.carried), arrays, strict=True):
            _write(self._lane(round_number, lane, kind), "ab", array)

    def take_edges(self, round_number: int) -> tuple[Array, Carried]:
        """A bucket's pairs [E, 2] and what they carry in the order of the edge files; they leave the disk."""
        pairs = self._take(round_number, "pairs", np.dtype(np.int32)).reshape(-1, 2)
        return pairs, {name: self._take(round_number, name, dtype_of(name)) for name in self.carried}

    def write_rows(self, round_number: int, rows: Rows) -> None:
        for name, array in {"indptr": rows.indptr, "indices": rows.indices, **rows.data}.items():
            _write(self._sorted(round_number, name), "wb", array)

    def read_rows(self, round_number: int, carried: Sequence[str] | None = None) -> Rows:
        """carried: which of what the edges carry is read; None: all."""
        indptr = np.fromfile(self._sorted(round_number, "indptr"), np.int64)
        indices = np.fromfile(self._sorted(round_number, "indices"), np.int32)
        names = self.carried if carried is None else carried
        data = {name: np.fromfile(self._sorted(round_number, name), dtype_of(name)) for name in names}
        return Rows(indptr, indices, data)

    def take_rows(self, round_number: int) -> Rows:
        """All of them; they leave the disk."""
        rows = self.read_rows(round_number)
        for name in ("indptr", "indices", *self.carried):
            self._sorted(round_number, name).unlink()
        return rows

    def _lane(self, round_number: int, lane: int, kind: str) -> Path:
        return self.stem / f"{round_number}-{lane}.{kind}"

    def _sorted(self, round_number: int, name: str) -> Path:
        return self.stem / f"{round_number}.{name}"

    def _take(self, round_number: int, kind: str, dtype: np.dtype[np.generic]) -> Array:
        files = [self._lane(round_number, lane, kind) for lane in range(self.lanes)]
        sizes = [file.stat().st_size if file.exists() else 0 for file in files]
        whole = np.empty(sum(sizes), np.uint8)
        end = 0
        for path, size in zip(files, sizes, strict=True):
            if size:
                with path.open("rb", buffering=0) as file:
                    _fill(whole[end : end + size], file)
                path.unlink()
            end += size
        return whole.view(dtype)


def _write(path: Path, mode: str, array: Array) -> None:
    # Not numpy's tofile, which does not say why it failed.
    with writing(path, array.nbytes), path.open(mode, buffering=0) as file:
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while left:
            left = left[file.write(left) :]


def _fill(array: Array, file: io.FileIO) -> None:
    done = 0
    while done < array.size:
        count = file.readinto(array[done:].data)
        assert count, f"{file.name} is shorter than what was written to it"
        done += count


def spill_edges(comm: Communicator, edges: EdgeFiles, buckets: Buckets, budget: Budget, spill: Spill) -> None:
    """Every worker reads its slice and sends each edge to the worker in whose bucket its destination lies."""
    exchange = AllToAll(comm, buckets.groups)
    span = edges.span(comm.worker, comm.num_workers)
    with progress("sending edges to buckets", len(span)) as advance:
        for chunk in _in_step(comm, edges.read(span, budget.chunk_edges), edges.carried):
            for direction in range(2 if budget.both_ways else 1):
                arrays, counts = _group(buckets, chunk, backwards=direction == 1)
                for peer, received in enumerate(exchange.send(arrays, counts, "topology", "edges")):
                    for round_number, pieces in received.of_groups():
                        spill.append(round_number, direction * comm.num_workers + peer, pieces)
            advance(chunk.amount)


def _in_step(comm: Communicator, chunks: Iterator[EdgeChunk], carried: tuple[str, ...]) -> Iterator[EdgeChunk]:
    """Chunks, and empty ones at the end, as many as the worker with most of them has: all must take part."""
    none = np.empty(0, np.int32)
    nothing = EdgeChunk(none, none, empty(carried, 0), 0)
    while True:
        chunk = next(chunks, None)
        left = comm.all_reduce(torch.tensor([int(chunk is not None)]), "control", "whether edges are left", "max")
        if not int(left):
            return
        yield chunk or nothing


def _group(buckets: Buckets, chunk: EdgeChunk, backwards: bool) -> tuple[list[Array], Array]:
    """A chunk's edges, or their reverses, by bucket: pairs [E, 2] and what they carry, each [E]; and counts."""
    src, dst = (chunk.dst, chunk.src) if backwards else (chunk.src, chunk.dst)
    counts = np.zeros(buckets.borders.size - 1, np.int64)
    pairs, data = np.empty((src.size, 2), np.int32), empty(chunk.data, src.size)
    kept = native().group_edges(
        *(src, dst, as_bytes(chunk.data.values()), backwards, buckets.cell_shift, buckets.group_of_cell),
        *(pairs, as_bytes(data.values()), counts),
    )
    arrays = [array[:kept] for array in (pairs, *data.values())]
    return arrays, np.tile(counts, (len(arrays), 1))


def sort_buckets(comm: Communicator, buckets: Buckets, spill: Spill, fingerprint: Fingerprint) -> None:
    """Every bucket's edges become rows on disk, and the graph's fingerprint is taken of them."""
    with progress("sorting buckets", buckets.num_rounds) as advance:
        for number in range(buckets.num_rounds):
            rows = _sort(buckets.span(number, comm.worker), *spill.take_edges(number))
            spill.write_rows(number, rows)
            fingerprint.add(rows.indices, rows.data)
            del rows  # before the next bucket is read
            advance(1)


def _sort(vertices: range, pairs: Array, data: Carried) -> Rows:
    indptr, indices = np.empty(len(vertices) + 1, np.int64), np.empty(len(pairs), np.int32)
    order = np.empty(len(pairs), np.int64) if data else NO_ORDER
    native().sort_bucket(pairs, vertices.start, indptr, indices, order)
    return Rows(indptr, indices, pick(data, order))
