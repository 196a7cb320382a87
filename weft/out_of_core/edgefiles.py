"""Edge files that are read in slices and chunks, never whole: npy, parquet, csv.

Every worker reads its own slice: rows of an npy or parquet file, bytes of a text file up to the end of a line. Vertices
are numbered 0..N-1 already: to give numbers to arbitrary ids, all ids must be known, which is `weft ingest`'s work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from weft.errors import UserError
from weft.graph.build import MAX_NODES
from weft.graph.edgelist import DST_NAMES, SRC_NAMES, TIME_NAMES, WEIGHT_NAMES, EdgeColumns, read_npy
from weft.graph.files import MANIFEST, Array
from weft.graph.tables import COMPRESSED, PARQUET, TEXT, TableFile, kind_of, open_table, to_numpy
from weft.graph.times import times_of_column, to_times
from weft.out_of_core.edgedata import CARRIED, Carried, dtype_of
from weft.out_of_core.job import Job

KINDS = (".npy", *PARQUET, *TEXT)
BYTES_PER_LINE = 4  # of a text file, at the least: two digits, a comma and the end of the line
HEAD = 1 << 16  # bytes of a text file whose times show what times are written as
INGEST = "number them with `weft ingest`, which takes any ids, and partition the graph that it makes"


class EdgeChunk(NamedTuple):
    """Some edges; `amount` says how much of the file they are, in its own unit."""

    src: Array  # int32 [E]
    dst: Array  # int32 [E]
    data: Carried  # what they carry: "weight" float32 [E], "time" float64 [E]
    amount: int


class EdgeFile(Protocol):
    """One file of edges."""

    @property
    def length(self) -> int:
        """In rows or in bytes: in whatever it is sliced by."""

    @property
    def carried(self) -> tuple[str, ...]:
        """What its edges carry beside their ends: names of CARRIED."""

    def read(self, begin: int, end: int, chunk_edges: int, num_nodes: int) -> Iterator[EdgeChunk]:
        """The edges of a slice in order, at most so many at one time."""


@dataclass(frozen=True)
class EdgeFiles:
    """All files as one list of edges, file after file."""

    files: tuple[EdgeFile, ...]
    num_nodes: int = MAX_NODES  # ids are below this

    @property
    def carried(self) -> tuple[str, ...]:
        return self.files[0].carried

    def span(self, worker: int, num_workers: int) -> range:
        total = sum(file.length for file in self.files)
        return range(total * worker // num_workers, total * (worker + 1) // num_workers)

    def read(self, span: range, chunk_edges: int) -> Iterator[EdgeChunk]:
        first = 0
        for file in self.files:
            begin, end = max(span.start - first, 0), min(span.stop - first, file.length)
            if begin < end:
                yield from file.read(begin, end, chunk_edges, self.num_nodes)
            first += file.length


def find_edge_files(source: str) -> tuple[Path, ...]:
    """The edge files that a command line means: one file, a folder of them, or A.npy,B.npy; () if it means none."""
    path = Path(source)
    if path.is_dir() and not (path / MANIFEST).exists():
        inside = sorted(path.iterdir())
        if {"indptr.npy", "indices.npy"} <= {file.name for file in inside}:
            raise UserError(f"{path} is a graph folder without its {MANIFEST}: make the folder again")
        return tuple(inside) if all(file.is_file() and kind_of(file) in KINDS for file in inside) else ()
    paths = tuple(Path(name) for name in source.split(","))
    return paths if all(kind_of(path) in KINDS for path in paths) else ()


def open_edges(job: Job, num_nodes: int | None = None) -> EdgeFiles:
    for path in job.edges:
        if not path.is_file():
            raise UserError(f"{path} does not exist: give a file of edges")
    kinds = [kind_of(path) for path in job.edges]
    columns = job.columns
    if kinds == [".npy", ".npy"] and read_npy(job.edges[0]).ndim == 1:
        files: tuple[EdgeFile, ...] = (_open_two_ends(job.edges[0], job.edges[1], columns),)
    else:
        for name in CARRIED:
            if kinds.count(".npy") > 1 and getattr(columns, name) is not None:
                raise UserError(f"{name}s in a file of their own go with one npy file of edges: join the files first")
        files = tuple(_open_file(path, columns, job.header) for path in job.edges)
    for name in CARRIED:
        if len({name in file.carried for file in files}) > 1:
            raise UserError(f"some of the {len(files)} edge files have {name}s and some have none: give all, or none")
    if sum(file.length for file in files) == 0:
        raise UserError(f"{job.edges[0]} has no edges: nothing to train on")
    return EdgeFiles(files, MAX_NODES if num_nodes is None else num_nodes)


def _open_file(path: Path, columns: EdgeColumns, header: bool | None) -> EdgeFile:
    kind = kind_of(path)
    if kind == ".npy":
        return _open_pairs(path, columns)
    if kind not in (*PARQUET, *TEXT):
        raise UserError(f"{path} is no edge list that can be read in slices: give one of {', '.join(KINDS)}")
    if path.suffix.lower() in COMPRESSED:
        raise UserError(f"{path} is compressed, and cannot be read from the middle: unpack it first")
    return _open_table(path, columns, header)


# -- npy --------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """Numbers that lie one after another in a file. They are read, not mapped: mapped pages count as memory in use."""

    path: Path
    dtype: np.dtype[Any]
    offset_bytes: int

    def read(self, begin: int, end: int) -> Array:
        at = self.offset_bytes + begin * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, end - begin, offset=at)


@dataclass(frozen=True)
class NpyEdges:
    """Ends in two runs of numbers or, with `dst` None, in pairs."""

    src: Numbers
    dst: Numbers | None
    length: int
    data: Mapping[str, Numbers]

    @property
    def carried(self) -> tuple[str, ...]:
        return tuple(self.data)

    def read(self, begin: int, end: int, chunk_edges: int, num_nodes: int) -> Iterator[EdgeChunk]:
        for first in range(begin, end, chunk_edges):
            last = min(end, first + chunk_edges)
            if self.dst is None:
                pairs = self.src.read(2 * first, 2 * last).reshape(-1, 2)
                src, dst = pairs[:, 0], pairs[:, 1]
            else:
                src, dst = self.src.read(first, last), self.dst.read(first, last)
            data = {name: numbers.read(first, last) for name, numbers in self.data.items()}
            if "time" in data:
                data["time"] = to_times(data["time"], last - first, f"the times in {self.data['time'].path}").numpy()
            yield _chunk(self.src.path, src, dst, data, last - first, num_nodes, first)


def _open_pairs(path: Path, columns: EdgeColumns) -> NpyEdges:
    if columns.src is not None or columns.dst is not None:
        raise UserError(f"{path} holds both ends of every edge: leave --src-column and --dst-column out")
    array = read_npy(path)
    if array.ndim != 2 or 2 not in array.shape:
        raise UserError(f"{path} has shape {list(array.shape)}: edges are [2, E] or [E, 2], or two files A.npy,B.npy")
    in_rows = array.shape[0] == 2
    numbers, count = _numbers(path, array), array.size // 2
    in_pairs = array.flags.c_contiguous != in_rows
    dst = None if in_pairs else numbers._replace(offset_bytes=numbers.offset_bytes + count * numbers.dtype.itemsize)
    return NpyEdges(numbers, dst, count, _open_data(columns, count))


def _open_two_ends(src: Path, dst: Path, columns: EdgeColumns) -> NpyEdges:
    ends = [read_npy(path) for path in (src, dst)]
    if ends[0].ndim != 1 or ends[0].shape != ends[1].shape:
        shapes = " and ".join(str(list(end.shape)) for end in ends)
        raise UserError(f"{src} and {dst} have shapes {shapes}: give one length")
    return NpyEdges(_numbers(src, ends[0]), _numbers(dst, ends[1]), ends[0].size, _open_data(columns, ends[0].size))


def _open_data(columns: EdgeColumns, count: int) -> dict[str, Numbers]:
    """What edges carry, each in a file of its own."""
    files = {}
    for name, file in (("weight", columns.weight), ("time", columns.time)):
        if file is None:
            continue
        array, dates = read_npy(Path(file)), name == "time"
        if array.shape not in ((count,), (count, 1)) or array.dtype.kind not in ("biufM" if dates else "biuf"):
            raise UserError(
                f"{file} holds {array.dtype} {list(array.shape)} for {count} edges: "
                f"give one number{' or date' * dates} per edge"
            )
        files[name] = _numbers(Path(file), array)
    return files


def _numbers(path: Path, array: Array) -> Numbers:
    return Numbers(path, array.dtype, getattr(array, "offset", 0))


# -- tables -----------------------------------------------------------------------------------------------------


def _open_table(path: Path, asked: EdgeColumns, header: bool | None) -> EdgeFile:
    table = open_table(path, (*SRC_NAMES, *DST_NAMES, *WEIGHT_NAMES, *TIME_NAMES, *asked.names), header)
    src = table.pick("source", asked.src, SRC_NAMES, 0)
    dst = table.pick("destination", asked.dst, DST_NAMES, 1)
    if src is None or dst is None or src == dst:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}: name the ends of an edge with --src-column and "
            "--dst-column"
        )

    def unless_taken(role: str, wanted: str | None, known: Sequence[str]) -> str | None:
        column = table.pick(role, wanted, known)
        return None if wanted is None and column in asked.names else column

    weight, time = unless_taken("weight", asked.weight, WEIGHT_NAMES), unless_taken("time", asked.time, TIME_NAMES)
    found = EdgeColumns(src, dst, weight, time=time)
    if len(set(found.names)) < len(found.names):
        raise UserError(f"{path}: one column is asked for as two things ({', '.join(found.names)}): name each once")
    if table.parquet:
        return ParquetEdges(table, found, int(pq.read_metadata(path).num_rows))
    edges = TextEdges(table, found, _first_byte(table))
    return edges if time is None else replace(edges, time_type=_time_type(edges, time))


@dataclass(frozen=True)
class ParquetEdges:
    table: TableFile
    columns: EdgeColumns
    length: int

    @property
    def carried(self) -> tuple[str, ...]:
        return _carried(self.columns)

    def read(self, begin: int, end: int, chunk_edges: int, num_nodes: int) -> Iterator[EdgeChunk]:
        path = self.table.path
        with pq.ParquetFile(path, pre_buffer=False) as file:
            first = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first < end and first + rows > begin:
                    batches = file.iter_batches(chunk_edges, [group], self.columns.names)
                    yield from self._chunks(batches, first, begin, end, num_nodes)
                first += rows

    def _chunks(
        self, batches: Iterator[pa.RecordBatch], first: int, begin: int, end: int, num_nodes: int
    ) -> Iterator[EdgeChunk]:
        """Those rows of a row group, whose own begin at `first`, that lie in the slice."""
        for batch in batches:
            low, high = max(begin - first, 0), min(end - first, batch.num_rows)
            if low < high:
                columns = _columns(self.table.path, batch.slice(low, high - low), self.columns)
                yield _chunk(self.table.path, *columns, high - low, num_nodes, first + low)
            first += batch.num_rows


@dataclass(frozen=True)
class TextEdges:
    table: TableFile
    columns: EdgeColumns
    first_byte: int  # of the first line of data
    time_type: pa.DataType | None = None  # of the times, by the first lines

    @property
    def length(self) -> int:
        return self.table.path.stat().st_size - self.first_byte

    @property
    def carried(self) -> tuple[str, ...]:
        return _carried(self.columns)

    def read(self, begin: int, end: int, chunk_edges: int, num_nodes: int) -> Iterator[EdgeChunk]:
        chunk_bytes = max(1 << 12, chunk_edges * BYTES_PER_LINE)
        path = self.table.path
        for text in _lines(path, self.first_byte + begin, self.first_byte + end, self.first_byte, chunk_bytes):
            yield _chunk(path, *_columns(path, self.parse(text), self.columns), len(text), num_nodes, None)

    def parse(self, text: bytes) -> pa.Table:
        types = {str(self.columns.src): pa.int64(), str(self.columns.dst): pa.int64()}
        if self.columns.weight is not None:
            types[self.columns.weight] = pa.float32()
        if self.columns.time is not None and self.time_type is not None:
            types[self.columns.time] = self.time_type
        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(text),
                read_options=pyarrow.csv.ReadOptions(column_names=list(self.table.columns), use_threads=False),
                parse_options=pyarrow.csv.ParseOptions(delimiter=self.table.delimiter),
                convert_options=pyarrow.csv.ConvertOptions(include_columns=self.columns.names, column_types=types),
            )
        except pa.ArrowInvalid as error:
            reason = " ".join(str(error).split())
            if "conversion error to int64" in reason:
                raise UserError(f"{self.table.path} has ids that are no integers ({reason}): {INGEST}") from None
            raise UserError(f"{self.table.path} cannot be read ({reason}): mend that line") from None


def _time_type(edges: TextEdges, column: str) -> pa.DataType:
    """What times are, by the first lines: left to each chunk, it would depend on where chunks begin.

    Numbers may become fractions further down, days moments, and seconds their fractions.
    """
    path, first = edges.table.path, edges.first_byte
    head = next(_lines(path, first, path.stat().st_size, first, HEAD), b"")
    found = edges.parse(head).column(column).type if head else pa.null()
    if pa.types.is_integer(found) or pa.types.is_null(found):
        return pa.float64()
    if pa.types.is_date(found) or (pa.types.is_timestamp(found) and found.unit != "ns"):
        return pa.timestamp("us", getattr(found, "tz", None))
    return found


def _carried(columns: EdgeColumns) -> tuple[str, ...]:
    return tuple(name for name in CARRIED if getattr(columns, name) is not None)


def _first_byte(table: TableFile) -> int:
    """Where data begins, behind comments and header."""
    with table.path.open("rb") as file:
        for _ in range(table.skip_lines + int(table.header)):
            file.readline()
        return file.tell()


def _lines(path: Path, begin: int, end: int, data_begin: int, chunk_bytes: int) -> Iterator[bytes]:
    """The lines that begin in [begin, end), in chunks of whole lines that hold something."""
    with path.open("rb") as file:
        file.seek(max(begin - 1, data_begin))
        if begin > data_begin:
            file.readline()  # it began before, or is the line end just before
        while (position := file.tell()) < end:
            text = file.read(min(chunk_bytes, end - position))
            if not text.endswith(b"\n"):
                text += file.readline()
            if not text.isspace():
                yield text


def _columns(path: Path, table: pa.Table | pa.RecordBatch, found: EdgeColumns) -> tuple[Array, Array, Carried]:
    for name in found.names:
        if table.column(name).null_count:
            raise UserError(f"{path} has a row without '{name}': every edge needs one")
    data = {} if found.weight is None else {"weight": to_numpy(table.column(found.weight))}
    if found.time is not None:
        what = f"column '{found.time}' of {path}"
        data["time"] = to_times(times_of_column(table.column(found.time), what), table.num_rows, what).numpy()
    return to_numpy(table.column(str(found.src))), to_numpy(table.column(str(found.dst))), data


# -- checks -----------------------------------------------------------------------------------------------------


def _chunk(
    path: Path, src: Array, dst: Array, carried: Carried, amount: int, num_nodes: int, first_edge: int | None
) -> EdgeChunk:
    for ends in (src, dst):
        if ends.dtype.kind not in "iu":
            raise UserError(f"{path} holds {ends.dtype} where ids should be: {INGEST}")
    _check_range(path, src, dst, num_nodes, first_edge)
    data = {name: np.ascontiguousarray(array.reshape(-1), dtype=dtype_of(name)) for name, array in carried.items()}
    if "weight" in data and not np.isfinite(data["weight"]).all():
        raise UserError(f"{path} has edge weights that are NaN or infinite: replace them before training")
    if "time" in data and not (known := np.isfinite(data["time"])).all():
        which = "an edge" if first_edge is None else f"edge {first_edge + int(np.flatnonzero(~known)[0])}"
        raise UserError(f"{which} of {path} has no time, or an infinite one: give every edge a time")
    return EdgeChunk(np.ascontiguousarray(src, np.int32), np.ascontiguousarray(dst, np.int32), data, amount)


def _check_range(path: Path, src: Array, dst: Array, num_nodes: int, first_edge: int | None) -> None:
    if src.size == 0 or (min(int(src.min()), int(dst.min())) >= 0 and max(int(src.max()), int(dst.max())) < num_nodes):
        return
    at = int(np.flatnonzero((src < 0) | (src >= num_nodes) | (dst < 0) | (dst >= num_nodes))[0])
    which = "an edge" if first_edge is None else f"edge {first_edge + at}"
    raise UserError(
        f"{which} of {path} ({src[at]} -> {dst[at]}) points outside the graph, whose vertices are 0..{num_nodes - 1}: "
        f"mend it, or if these ids are not numbers of rows, {INGEST}"
    )
