"""Parts from blocks: every part's rows arrive in ascending order of vertices and go straight into its files."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.comm import Communicator
from weft.external.blocks import Blocks
from weft.external.dealing import Dealer
from weft.external.fingerprint import pieces
from weft.external.growing import GrowingArray
from weft.external.job import Budget
from weft.external.native import native
from weft.external.nodes import RowFile
from weft.external.spill import NO_WEIGHTS, Rows, Spill
from weft.graph.files import MANIFEST, Array, FolderWriter, sha256_of
from weft.graph.progress import progress
from weft.partition.store import PartInfo, part_name, parts_of, position_dtype

PIECE_ROWS = 1 << 20
SIDES = ("local", "remote")


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
    inverse = np.lib.format.open_memmap(order, mode="w+", dtype=dtype, shape=owner.shape)
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
    inverse.flush()


# -- one part ---------------------------------------------------------------------------------------------------


class PartFiles:
    """The files of one part while they are being written."""

    def __init__(self, writer: FolderWriter, part: int, placement: Placement, weighted: bool) -> None:
        self.writer, self.part, self.placement = writer, part, placement
        self.bfloat16: list[str] = []
        self.num_train = 0
        self._arrays: dict[str, GrowingArray] = {}
        for side in SIDES:
            self._open(f"{side}_indptr", np.int64).append(np.zeros(1, np.int64))
            self._open(f"{side}_indices", np.int32)  # of the remote side: positions, until all are known
            if weighted:
                self._open(f"{side}_weight", np.float32)
        self._num_edges = dict.fromkeys(SIDES, 0)
        self._needed = np.zeros(-(-placement.num_nodes // 64), np.uint64)  # one bit per position

    def _open(self, name: str, dtype: object, row_shape: tuple[int, ...] = ()) -> GrowingArray:
        self._arrays[name] = GrowingArray(self.writer.temporary / f"{name}.npy", dtype, row_shape)
        return self._arrays[name]

    def add_edges(self, side: str, degrees: Array, columns: Array, weight: Array) -> None:
        """The next rows' in-edges, as rows of this part (local) or positions (remote)."""
        ends = self._num_edges[side] + np.cumsum(degrees, dtype=np.int64)
        self._num_edges[side] += columns.size
        self._arrays[f"{side}_indptr"].append(ends)
        self._arrays[f"{side}_indices"].append(columns)
        if weight.size:
            self._arrays[f"{side}_weight"].append(weight)
        if side == "remote":
            native().mark_bits(columns, self._needed)

    def open_rows(self, file: RowFile) -> None:
        """Before the first of a file's rows."""
        self._open(file.name, file.dtype, file.shape[1:])
        if file.bfloat16:
            self.bfloat16.append(file.name)

    def add_rows(self, file: RowFile, rows: Array) -> None:
        self._arrays[file.name].append(rows)
        if file.name == "train_mask":
            self.num_train += int(rows.sum())

    @property
    def num_edges(self) -> tuple[int, int]:
        """Local and remote."""
        return self._num_edges["local"], self._num_edges["remote"]

    def finish(self, partition_id: str) -> list[int]:
        """Halo, vertices and metadata; returns how many rows the part needs from each part."""
        self._number_remote()
        halo_counts = self._write_halo()
        ids = self._open("global_ids", np.int64)
        for members in self.placement.members(self.part):
            ids.append(members)
        for name, array in self._arrays.items():
            array.close()
            self.writer.adopt(name)
        info = PartInfo(
            partition_id=partition_id,
            part=self.part,
            halo_counts=tuple(halo_counts),
            bfloat16=tuple(self.bfloat16),
        )
        self.writer.meta = info.model_dump(mode="json")
        return halo_counts

    def _number_remote(self) -> None:
        """Positions become halo slots: how many needed positions come before."""
        counts = np.bitwise_count(self._needed)
        before = np.cumsum(counts, dtype=np.int64) - counts
        columns = self._arrays["remote_indices"]
        for begin, end in pieces(columns.length, PIECE_ROWS):
            slots = columns.read(begin, end)
            native().number_bits(slots, self._needed, before)
            columns.overwrite(begin, slots)

    def _write_halo(self) -> list[int]:
        starts = self.placement.starts
        ids, rows = self._open("halo_ids", np.int64), self._open("halo_rows", np.int64)
        counts = np.zeros(self.placement.num_parts, np.int64)
        for begin, end in pieces(self._needed.size, PIECE_ROWS // 64):
            bits = np.unpackbits(self._needed[begin:end].view(np.uint8), bitorder="little")
            needed = 64 * begin + np.flatnonzero(bits)
            owners = np.searchsorted(starts, needed, "right") - 1
            ids.append(self.placement.order[needed].astype(np.int64))
            rows.append(needed - starts[owners])
            counts += np.bincount(owners, minlength=counts.size)
        return [int(count) for count in counts]


# -- all parts --------------------------------------------------------------------------------------------------


class Parts:
    """The parts that this worker writes, and what reaches them from all workers."""

    def __init__(self, comm: Communicator, folder: Path, placement: Placement, weighted: bool, open_until: ExitStack):
        self.comm, self.folder, self.placement, self.weighted = comm, folder, placement, weighted
        groups = [parts_of(worker, comm.num_workers, placement.num_parts) for worker in range(comm.num_workers)]
        self.dealer = Dealer(comm, groups)
        self.files: list[PartFiles] = []
        for part in groups[comm.worker]:
            writer = open_until.enter_context(FolderWriter(folder / part_name(part), "part"))
            self.files.append(PartFiles(writer, part, placement, weighted))

    def cut_blocks(self, blocks: Blocks, spill: Spill) -> None:
        """Every block's rows to the parts of their vertices."""
        with progress("cutting blocks into parts", blocks.num_rounds) as advance:
            for number in range(blocks.num_rounds):
                vertices = blocks.span(number, self.comm.worker)
                arrays, counts = _cut(self.placement, vertices, spill.take_rows(number), self.weighted)
                for hand in self.dealer.deal(arrays, counts, "topology", "rows of parts"):
                    for own, columns in hand.of_groups():
                        self._add_edges(self.files[own], columns)
                advance(1)

    def _add_edges(self, file: PartFiles, columns: Sequence[Array]) -> None:
        degrees, edges, weights = columns[:2], columns[2:4], columns[4:] or (NO_WEIGHTS, NO_WEIGHTS)
        for number, side in enumerate(SIDES):
            file.add_edges(side, degrees[number], edges[number], weights[number])

    def deal_rows(self, file: RowFile, budget: Budget) -> None:
        """The rows of a file, piece k read by worker k mod W, to the parts of their vertices."""
        for part in self.files:
            part.open_rows(file)
        num_nodes, workers = self.placement.num_nodes, self.comm.num_workers
        step = budget.rows_at_once(num_nodes, file.row_bytes)
        with progress(f"writing {file.name}", num_nodes) as advance:
            for first in range(0, num_nodes, step * workers):
                begin = min(num_nodes, first + step * self.comm.worker)
                end = min(num_nodes, begin + step)
                owner = self.placement.owner[begin:end]
                rows = file.read(begin, end)[np.argsort(owner, kind="stable")]
                counts = np.bincount(owner, minlength=self.placement.num_parts)[None]
                for hand in self.dealer.deal([rows], counts, "features", file.name):
                    for own, (piece,) in hand.of_groups():
                        self.files[own].add_rows(file, piece)
                advance(step * workers)

    def finish(self, partition_id: str) -> dict[int, list[int]]:
        """Own part -> how many rows it needs from each part."""
        return {file.part: file.finish(partition_id) for file in self.files}

    def manifest_digests(self) -> dict[int, str]:
        """Own part -> sha256 of its manifest, once its folder is closed."""
        return {file.part: sha256_of(self.folder / part_name(file.part) / MANIFEST) for file in self.files}


def _cut(placement: Placement, vertices: range, rows: Rows, weighted: bool) -> tuple[list[Array], Array]:
    """Degrees and columns, local and remote, and weights if there are any, each by part; and how many of each."""
    owner = placement.owner[vertices.start : vertices.stop]
    counts = np.zeros((3, placement.num_parts), np.int64)
    native().locate(rows.indptr, rows.indices, owner, placement.position, placement.starts, counts)
    degrees = [np.empty(len(vertices), np.int32) for _ in SIDES]
    columns = [np.empty(int(counts[kind].sum()), np.int32) for kind in (1, 2)]
    weights = [np.empty(column.size if weighted else 0, np.float32) for column in columns]
    native().split_rows(
        *(rows.indptr, rows.indices, rows.weight, owner, placement.starts, counts), *degrees, *columns, *weights
    )
    kinds = [0, 0, 1, 2]
    if weighted:
        return [*degrees, *columns, *weights], counts[[*kinds, 1, 2]]
    return [*degrees, *columns], counts[kinds]
