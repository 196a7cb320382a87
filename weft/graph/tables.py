"""csv, tsv, txt and parquet files as batches of columns, read by pyarrow."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from weft.disk.reading import check_file
from weft.errors import UserError, unknown
from weft.graph.files import Array
from weft.graph.progress import progress

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
TEXT = (".csv", ".tsv", ".txt", ".edges", ".el")
PARQUET = (".parquet", ".pq")
CHUNK_BYTES = 16 << 20
ROWS_PER_BATCH = 1 << 20
BATCH_BYTES = 1 << 24  # of the features of one batch
PARQUET_BUFFER_BYTES = 1 << 20  # pyarrow would otherwise keep all of the file that it has read


@dataclass(frozen=True)
class TableFile:
    """One table on disk: its column names, and what is needed to read it again in batches."""

    path: Path
    columns: tuple[str, ...]
    delimiter: str = ","
    skip_lines: int = 0  # comments
    header: bool = True

    @property
    def parquet(self) -> bool:
        return kind_of(self.path) in PARQUET

    def pick(self, role: str, asked: str | None, known: Sequence[str], position: int | None = None) -> str | None:
        """The column of a role: the one asked for, else one of a known name, else by position without header."""
        if asked is not None:
            if asked not in self.columns:
                raise UserError(f"{self.path}: {unknown('column', asked, self.columns)}")
            return asked
        for name in self.columns:
            if name.lower().strip() in known:
                return name
        if position is not None and position < len(self.columns) and (not self.header or len(self.columns) == 2):
            return self.columns[position]
        return None


def kind_of(path: Path) -> str:
    """The suffix that says what the file is, without a compression's suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes = suffixes[:-1]
    return suffixes[-1] if suffixes else ""


def open_table(path: Path, names: Sequence[str], header: bool | None = None) -> TableFile:
    """`names` are column names that tell a header from a first row of data; `header` decides it."""
    if check_file(path, "give the path of a table").st_size == 0:
        raise UserError(f"{path} is empty: nothing to read")
    if kind_of(path) in PARQUET:
        with _readable(path):
            return TableFile(path, tuple(pq.read_schema(path).names))
    lines, skipped = _first_lines(path)
    if not lines:
        raise UserError(f"{path} is empty: nothing to read")
    first = lines[0]
    delimiter = {".csv": ",", ".tsv": "\t"}.get(kind_of(path)) or next(
        (mark for mark in ("\t", ",", ";") if mark in first), " "
    )
    fields = [field.strip().strip('"') for field in first.split(delimiter)]
    if header is None:
        header = _is_header(path, fields, names)
    columns = tuple(fields) if header else tuple(f"f{k}" for k in range(len(fields)))
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise UserError(f"{path} has two columns called '{twice}': rename one")
    return TableFile(path, columns, delimiter, skipped, header)


def read_batches(
    table: TableFile,
    columns: Sequence[str],
    types: dict[str, pa.DataType] | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,  # at most, where the format knows of rows
) -> Iterator[pa.RecordBatch]:
    """The chosen columns, batch by batch, in the file's order."""
    if not columns:
        return
    if table.parquet:
        with (
            _readable(table.path),
            pq.ParquetFile(table.path, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False) as file,
            progress(f"reading {table.path.name}", file.metadata.num_rows) as advance,
        ):
            for batch in file.iter_batches(batch_size=rows_per_batch, columns=list(columns)):
                yield batch
                advance(batch.num_rows)
        return
    with (
        _readable(table.path),
        pa.OSFile(str(table.path)) as raw,
        progress(f"reading {table.path.name}", table.path.stat().st_size) as advance,
    ):
        position = 0
        for batch in _open_text(table, columns, types, raw):
            yield batch
            advance(raw.tell() - position)
            position = raw.tell()


def feature_batches(table: TableFile, columns: Sequence[str], texts: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
    """Columns of features, in batches of bounded size; those in `texts` hold names, even if they look like numbers."""
    if table.parquet:
        yield from read_batches(table, columns, rows_per_batch=_rows_that_fit(table))
    elif columns:
        types = _feature_types(table, columns, texts)
        try:
            yield from read_batches(table, columns, types)
        except UserError as error:
            found = re.search(r"conversion error to .*?: (.*?)\)", str(error))
            if found is None:
                raise
            raise UserError(
                f"{table.path} has other values further down than in its first rows ({found[1]}): leave fields empty "
                "where values are missing, or say with --category-columns that all values of a column are names"
            ) from None


def _feature_types(table: TableFile, columns: Sequence[str], texts: Collection[str]) -> dict[str, pa.DataType]:
    """Types for columns of a text file whose first rows may mislead: whole or missing numbers before others."""
    with _readable(table.path), pa.OSFile(str(table.path)) as raw:
        found = _open_text(table, columns, None, raw).schema
    numbers = {
        field.name: pa.float64() for field in found if pa.types.is_integer(field.type) or pa.types.is_null(field.type)
    }
    return numbers | {name: pa.string() for name in columns if name in texts}


def _rows_that_fit(table: TableFile) -> int:
    """How many rows of a parquet file make a batch of moderate size."""
    with _readable(table.path):
        metadata = pq.read_metadata(table.path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return min(ROWS_PER_BATCH, max(1, BATCH_BYTES // max(int(row_bytes), 8 * int(metadata.num_columns))))


def count_rows(table: TableFile) -> int:
    """How many rows a table has; a text file is read for that."""
    if table.parquet:
        with _readable(table.path):
            return int(pq.read_metadata(table.path).num_rows)
    return sum(batch.num_rows for batch in read_batches(table, table.columns[:1], {table.columns[0]: pa.string()}))


def _open_text(
    table: TableFile, columns: Sequence[str], types: dict[str, pa.DataType] | None, raw: pa.NativeFile
) -> pyarrow.csv.CSVStreamingReader:
    suffix = table.path.suffix.lower()
    stream = pa.CompressedInputStream(raw, _CODEC[suffix]) if suffix in COMPRESSED else raw
    return pyarrow.csv.open_csv(
        stream,
        read_options=pyarrow.csv.ReadOptions(
            block_size=CHUNK_BYTES,
            skip_rows=table.skip_lines + (1 if table.header else 0),
            column_names=list(table.columns),
        ),
        parse_options=pyarrow.csv.ParseOptions(delimiter=table.delimiter),
        convert_options=pyarrow.csv.ConvertOptions(include_columns=list(columns), column_types=types),
    )


_CODEC = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if "Empty CSV" in reason:
            raise UserError(f"{path} has no rows: nothing to read") from None
        raise UserError(f"{path} cannot be read ({reason}): it is truncated, or not the format it says") from error


def _first_lines(path: Path) -> tuple[list[str], int]:
    """The first line that is no comment, and how many lines come before it."""
    skipped = 0
    with _readable(path), pa.input_stream(str(path), compression="detect") as stream:
        head = stream.read(1 << 16)
    for line in head.decode("utf-8", errors="replace").splitlines():
        if line.startswith(("#", "%")) or not line.strip():
            skipped += 1
        else:
            return [line], skipped
    return [], skipped


def has_leading_zeros(table: TableFile) -> bool:
    """Whether a field of a text file may begin with a zero and go on with digits, as 01 does.

    Read as integers, "01" and "1" would be one id: such ids are text.
    """
    if table.parquet:
        return False
    tail = b"\n"
    with _readable(table.path), pa.input_stream(str(table.path), compression="detect") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            if _LEADING_ZERO.search(tail + chunk):
                return True
            tail = chunk[-2:]
    return False


# The zero comes first, because a search for one byte is fast.
_LEADING_ZERO = re.compile(rb'0(?<=[\n\r\t ,;"+-]0)[0-9]')


def _is_header(path: Path, fields: Sequence[str], names: Sequence[str]) -> bool:
    if any(field.lower() in names or field in names for field in fields):
        return True
    if all(_is_number(field) for field in fields):
        return False
    raise UserError(
        f"the first line of {path} ('{', '.join(fields[:4])}') may be a header or data: pass --header or "
        "--no-header, or name the columns"
    )


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def to_numpy(column: pa.Array | pa.ChunkedArray) -> Array:
    """A column as numpy; missing numbers as NaN, missing text as ''."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        values: Any = column.fill_null("").to_numpy(zero_copy_only=False) if column.null_count else None
        values = column.to_numpy(zero_copy_only=False) if values is None else values
        return np.asarray(values).astype(np.str_)
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if isinstance(column, pa.ChunkedArray):
        return np.asarray(column.to_numpy())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def number_rows(path: Path, batch: pa.RecordBatch, first_row: int, owner: str) -> Array:
    """Numbers and lists of numbers side by side, float32 [rows, F]: one row per `owner`, missing ones as NaN."""
    parts = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if is_list(column.type):
            parts.append(list_rows(path, column, first_row, owner))
        elif (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_boolean(column.type)
            or pa.types.is_null(column.type)
        ):
            values = column.cast(pa.float32(), safe=False).fill_null(float("nan"))
            parts.append(values.to_numpy(zero_copy_only=False)[:, None])
        else:
            raise UserError(f"column '{name}' of {path} holds {column.type}, features are numbers: remove it")
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0], dtype=np.float32)
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def list_rows(path: Path, column: pa.Array, first_row: int, owner: str, width: int | None = None) -> Array:
    """Lists of numbers as rows [rows, W]; width: how many numbers each must have, None: as many as the first."""
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, column.type.list_size)
    else:
        lengths = np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    expected = width if width is not None else int(lengths[0]) if len(lengths) else 0
    wrong = np.flatnonzero(lengths != expected)
    if wrong.size:
        row = int(wrong[0])
        raise UserError(
            f"row {first_row + row} of {path} has {lengths[row]} features, the rows before have {expected}: give every "
            f"{owner} the same number"
        )
    flat = column.flatten().cast(pa.float32(), safe=False).fill_null(float("nan"))
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), expected)
