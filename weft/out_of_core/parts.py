"""Parts from buckets: every part's rows arrive in ascending order of vertices and go straight into its files."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from weft.comm import Communicator
from weft.graph.files import MANIFEST, Array, ArrayWriter, sha256_of
from weft.graph.progress import progress
from weft.out_of_core.all_to_all import AllToAll
from weft.out_of_core.buckets import Buckets
from weft.out_of_core.budget import Budget, pieces
from weft.out_of_core.edgedata import Carried, as_bytes, empty, named
from weft.out_of_core.growing import GrowingArray
from weft.out_of_core.native import native
from weft.out_of_core.placement import PIECE_ROWS, Placement
from weft.out_of_core.spill import Rows, Spill
from weft.out_of_core.vertexfiles import VertexFile
from weft.partitioning.info import PartInfo, part_name, parts_of
from weft.partitioning.schema import SIDES, PartSizes, edge_array, find_mistake, part_array

# -- one part ---------------------------------------------------------------------------------------------------


class PartFiles:
    """The files of one part while they are being written."""

    def __init__(self, writer: ArrayWriter, part: int, placement: Placement, carried: tuple[str, ...]) -> None:
        self.writer, self.part, self.placement = writer, part, placement
        self.bfloat16: list[str] = []
        self.num_train = 0
        self._arrays: dict[str, GrowingArray] = {}
        for side in SIDES:
            self._open(edge_array(side, "indptr")).append(np.zeros(1, np.int64))
            self._open(edge_array(side, "indices"))  # of the remote side: positions, until all are known
            for name in carried:
                self._open(edge_array(side, name))
        self._num_edges = dict.fromkeys(SIDES, 0)
        self._needed = np.zeros(-(-placement.num_nodes // 64), np.uint64)  # one bit per position

    def _open(self, name: str, dtype: object = None, row_shape: tuple[int, ...] = ()) -> GrowingArray:
        """dtype: of an array whose type the schema leaves open."""
        dtype = part_array(name).dtype or dtype
        self._arrays[name] = GrowingArray(self.writer.folder / f"{name}.npy", dtype, row_shape)
        return self._arrays[name]

    def add_edges(self, side: str, degrees: Array, columns: Array, data: Carried) -> None:
        """The next rows' in-edges, as rows of this part (local) or positions (remote)."""
        ends = self._num_edges[side] + np.cumsum(degrees, dtype=np.int64)
        self._num_edges[side] += columns.size
        self._arrays[edge_array(side, "indptr")].append(ends)
        self._arrays[edge_array(side, "indices")].append(columns)
        for name, array in data.items():
            self._arrays[edge_array(side, name)].append(array)
        if side == "remote":
            native().mark_bits(columns, self._needed)

    def open_rows(self, file: VertexFile) -> None:
        """Before the first of a file's rows."""
        self._open(file.name, file.dtype, file.shape[1:])
        if file.bfloat16:
            self.bfloat16.append(file.name)

    def add_rows(self, file: VertexFile, rows: Array) -> None:
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
        ids = self._open("global_ids")
        for members in self.placement.members(self.part):
            ids.append(members)
        for name, array in self._arrays.items():
            array.close()
            self.writer.adopt(name)
        sizes = PartSizes(ids.length, sum(halo_counts), self.num_edges)
        mistake = find_mistake(self.writer.arrays, sizes, self.bfloat16)
        assert mistake is None, mistake
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
        columns = self._arrays[edge_array("remote", "indices")]
        for begin, end in pieces(columns.length, PIECE_ROWS):
            slots = columns.read(begin, end)
            native().number_bits(slots, self._needed, before)
            columns.overwrite(begin, slots)

    def _write_halo(self) -> list[int]:
        starts = self.placement.starts
        ids, rows = self._open("halo_ids"), self._open("halo_rows")
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

    def __init__(
        self, comm: Communicator, folder: Path, placement: Placement, carried: tuple[str, ...], open_until: ExitStack
    ):
        self.comm, self.folder, self.placement, self.carried = comm, folder, placement, carried
        groups = [parts_of(worker, comm.num_workers, placement.num_parts) for worker in range(comm.num_workers)]
        self.exchange = AllToAll(comm, groups)
        self.files: list[PartFiles] = []
        for part in groups[comm.worker]:
            writer = open_until.enter_context(ArrayWriter(folder / part_name(part), "part"))
            self.files.append(PartFiles(writer, part, placement, carried))

    def cut_buckets(self, buckets: Buckets, spill: Spill) -> None:
        """Every bucket's rows to the parts of their vertices."""
        with progress("cutting buckets into parts", buckets.num_rounds) as advance:
            for number in range(buckets.num_rounds):
                vertices = buckets.span(number, self.comm.worker)
                self._send(*_cut(self.placement, vertices, spill.take_rows(number)))
                advance(1)

    def _send(self, arrays: list[Array], counts: Array) -> None:
        for received in self.exchange.send(arrays, counts, "topology", "rows of parts"):
            for own, columns in received.of_groups():
                self._add_edges(self.files[own], columns)

    def _add_edges(self, file: PartFiles, columns: Sequence[Array]) -> None:
        degrees, edges = columns[:2], columns[2:4]
        for number, side in enumerate(SIDES):
            data = named(self.carried, columns[4 + number :: len(SIDES)])
            file.add_edges(side, degrees[number], edges[number], data)

    def send_rows(self, file: VertexFile, budget: Budget) -> None:
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
                for received in self.exchange.send([rows], counts, "features", file.name):
                    for own, (piece,) in received.of_groups():
                        self.files[own].add_rows(file, piece)
                advance(step * workers)

    def finish(self, partition_id: str) -> dict[int, list[int]]:
        """Own part -> how many rows it needs from each part."""
        return {file.part: file.finish(partition_id) for file in self.files}

    def manifest_digests(self) -> dict[int, str]:
        """Own part -> sha256 of its manifest, once its folder is closed."""
        return {file.part: sha256_of(self.folder / part_name(file.part) / MANIFEST) for file in self.files}


def _cut(placement: Placement, vertices: range, rows: Rows) -> tuple[list[Array], Array]:
    """Degrees, columns, and array by array what edges carry, each local and remote, by part; and how many of each."""
    owner = placement.owner[vertices.start : vertices.stop]
    counts = np.zeros((3, placement.num_parts), np.int64)
    native().locate(rows.indptr, rows.indices, owner, placement.position, placement.starts, counts)
    degrees = [np.empty(len(vertices), np.int32) for _ in SIDES]
    columns = [np.empty(int(counts[kind].sum()), np.int32) for kind in (1, 2)]
    data = [empty(rows.data, column.size) for column in columns]
    native().split_rows(
        *(rows.indptr, rows.indices, as_bytes(rows.data.values()), owner, placement.starts, counts),
        *(*degrees, *columns, *(as_bytes(side.values()) for side in data)),
    )
    along = [side[name] for name in rows.data for side in data]
    return [*degrees, *columns, *along], counts[[0, 0, *[1, 2] * (1 + len(rows.data))]]
