"""A table of vertices as the npy files that the rest of the work reads: prepared features, labels, masks.

Worker 0 goes over the table batch by batch: once for labels and splits, once for statistics, once for rows. No step
holds more than a batch and what is known of each column.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from weft.comm import Communicator, broadcast_text
from weft.errors import UserError
from weft.graph.files import Array, create_npy
from weft.graph.nodefile import Roles, find_roles, masks_of_roles
from weft.graph.preparation import FeatureChoices, FeatureTable, Preparation, fit, prepared_batches
from weft.graph.preparation.values import is_text, numbers_of, texts_of
from weft.graph.tables import PARQUET, TEXT, TableFile, count_rows, kind_of, open_table, read_batches, to_numpy
from weft.graph.times import times_of_column, to_times
from weft.graph.vertexdata import SPLITS
from weft.out_of_core.budget import pieces
from weft.out_of_core.job import Job
from weft.out_of_core.splits import write_split
from weft.out_of_core.vertexfiles import PIECE_VALUES, open_vertex_files

PREPARED = "prepared"  # folder of the npy files, within scratch


@dataclass(frozen=True)
class Prepared:
    """A job whose features, labels and split are npy files, and what is known of the table that they came from."""

    job: Job
    preparation: Preparation | None = None
    class_names: tuple[str, ...] | None = None


class Source(NamedTuple):
    """A table of vertices, opened."""

    table: TableFile
    roles: Roles
    features: tuple[str, ...]
    time: str | None = None  # at which time each vertex is looked at


def is_table(path: Path | None) -> bool:
    return path is not None and kind_of(path) in (*TEXT, *PARQUET)


def open_source(job: Job) -> Source:
    """The job's table, and which column is what; nothing but its head is read."""
    assert job.features is not None
    choices = job.choices
    time = job.vertex_time_column
    asked = [*job.label_columns, *choices.features, *(name for name in (job.id_column, job.split_column, time) if name)]
    table = open_table(job.features, ("id", "label", "split", "x", *asked), job.header)
    roles = find_roles(table, job.id_column, job.label_columns, job.split_column, choices.features)
    if time is not None and time not in table.columns:
        raise UserError(f"no table of vertices has a column '{time}' with their times: give it in --features")
    taken = {roles.ids, roles.split, time, *roles.labels, *roles.masks}
    features = choices.select(job.features, table.columns, [name for name in table.columns if name not in taken])
    if roles.masks and (roles.split or len(roles.masks) < len(SPLITS)):
        raise UserError(f"{job.features} has {', '.join(roles.masks)}: give a column 'split', or all three masks")
    return Source(table, roles, features, time)


def prepare_table(comm: Communicator, job: Job, scratch: Path) -> Prepared:
    """Writes npy files of the job's table, if it has one; all workers call it."""
    if not is_table(job.features):
        return Prepared(job)
    folder, made = scratch / PREPARED, ""
    if comm.worker == 0:
        folder.mkdir()
        preparation, names = _write(job, folder)
        made = json.dumps({"preparation": preparation.model_dump(mode="json"), "class_names": names})
    comm.barrier("until the table of features is prepared")
    found: dict[str, Any] = json.loads(broadcast_text(comm, made, "what was made of the table"))
    names = found["class_names"]
    return Prepared(
        _with_files(job, folder),
        Preparation.model_validate(found["preparation"]),
        None if names is None else tuple(names),
    )


def _with_files(job: Job, folder: Path) -> Job:
    """The same job on the files that are there."""
    x, y, masks = folder / "x.npy", folder / "y.npy", [folder / f"{split}_mask.npy" for split in SPLITS]
    changed: dict[str, Any] = {
        "features": x if x.exists() else None,
        "choices": FeatureChoices(),
        "id_column": None,
        "label_columns": (),
        "split_column": None,
        "vertex_time_column": None,
    }
    if job.vertex_time_column is not None:
        changed["vertex_data"] = {**job.vertex_data, "time": folder / "time.npy"}
    if y.exists():
        changed["labels"] = y
    if job.split is None and masks[0].exists():
        changed["split"] = ",".join(map(str, masks))
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return job.model_copy(update={**changed, "num_nodes": int(rows[0])})


def _write(job: Job, folder: Path) -> tuple[Preparation, list[str] | None]:
    """All npy files; returns how features were prepared, and the names of classes."""
    source = open_source(job)
    num_rows = count_rows(source.table)
    if not num_rows:
        raise UserError(f"{job.features} has no rows: nothing to read")
    if job.num_nodes not in (None, num_rows):
        raise UserError(f"{job.features} has {num_rows} rows for {job.num_nodes} vertices: give one row per vertex")
    np.save(folder / "rows.npy", np.array([num_rows]))
    names = _write_plain(job, source, num_rows, folder)
    given = _with_files(job, folder).model_copy(update={"features": None})
    files = open_vertex_files(given)
    training = None
    if given.split is not None:
        split_folder = folder / "split"
        split_folder.mkdir()
        write_split(given.split, files, num_rows, split_folder)
        training = np.load(split_folder / "train_mask.npy", mmap_mode="r")
    labels = None if given.labels is None else np.load(given.labels, mmap_mode="r")
    preparation = fit(FeatureTable(source.table, source.features), job.choices, training, labels)
    if preparation.num_features:
        x = create_npy(folder / "x.npy", (num_rows, preparation.num_features), np.dtype(np.float32))
        begin = 0
        for rows in prepared_batches(preparation, source.table):
            x[begin : begin + len(rows)] = rows
            begin += len(rows)
    return preparation, names


def _write_plain(job: Job, source: Source, num_rows: int, folder: Path) -> list[str] | None:
    """Labels and masks; ids must be numbers of rows. Returns the names of classes, where labels are names."""
    roles = source.roles
    labels = _label_file(job, source, num_rows, folder) if roles.labels and job.labels is None else None
    of_split = roles.masks or ([roles.split] if roles.split else [])
    masks = {name: _new_mask(folder, name, num_rows) for name in SPLITS} if of_split and job.split is None else {}
    times = None if source.time is None else create_npy(folder / "time.npy", (num_rows,), np.dtype(np.float64))
    plain = [name for name in (roles.ids, source.time) if name is not None]
    wanted = [*plain, *(roles.labels if labels else []), *(of_split if masks else [])]
    for first, batch in _batches(source.table, wanted):
        rows = slice(first, first + batch.num_rows)
        if roles.ids:
            _check_ids(source.table.path, batch.column(roles.ids), first)
        if labels:
            labels.add(batch, rows)
        if times is not None:
            what = f"column '{source.time}' of {source.table.path}"
            times[rows] = to_times(times_of_column(batch.column(source.time), what), batch.num_rows, what).numpy()
        if roles.split and masks:
            for name, mask in masks_of_roles(source.table.path, to_numpy(batch.column(roles.split))).items():
                masks[name][rows] = mask
        for name in roles.masks if masks else ():
            masks[name.removesuffix("_mask")][rows] = to_numpy(batch.column(name)).astype(np.bool_)
    return labels.finish() if labels else None


def _batches(table: TableFile, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the first row, batch)"""
    first = 0
    for batch in read_batches(table, columns):
        yield first, batch
        first += batch.num_rows


def _check_ids(path: Path, column: pa.Array, first: int) -> None:
    if is_text(column.type) or column.null_count:
        raise UserError(f"the ids of {path} are no numbers of rows: run 'weft ingest', which takes any ids")
    wrong = np.flatnonzero(to_numpy(column) != np.arange(first, first + len(column)))
    if wrong.size:
        row = first + int(wrong[0])
        raise UserError(
            f"row {row} of {path} has id {column[int(wrong[0])]}: beside edge files row k is about vertex k, so sort "
            "the rows by their ids 0..N-1, or run 'weft ingest', which takes any ids"
        )


class _LabelFile:
    """y.npy, written batch by batch: classes by number or name, or several labels for each vertex."""

    def __init__(self, source: Source, num_rows: int, folder: Path) -> None:
        self._path, self._columns = source.table.path, source.roles.labels
        several = len(self._columns) > 1
        shape = (num_rows, len(self._columns)) if several else (num_rows,)
        self._y = create_npy(folder / "y.npy", shape, np.dtype(np.int8 if several else np.int64))
        self._numbers: dict[str, int] = {}  # of named classes, in the order in which they were seen

    def add(self, batch: pa.RecordBatch, rows: slice) -> None:
        columns = [batch.column(name) for name in self._columns]
        if len(columns) > 1:
            found = [self._whole(column, name, rows) for column, name in zip(columns, self._columns, strict=True)]
            self._y[rows] = np.stack(found, 1)
        elif is_text(columns[0].type) or pa.types.is_dictionary(columns[0].type):
            codes, texts = texts_of(columns[0])
            numbers = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
            self._y[rows] = np.array([*numbers, -1], np.int64)[codes]
        else:
            self._y[rows] = self._whole(columns[0], self._columns[0], rows)

    def _whole(self, column: pa.Array, name: str, rows: slice) -> Array:
        """Whole numbers, -1 where there is none."""
        try:
            values = np.nan_to_num(numbers_of(column), nan=-1)
        except pa.ArrowInvalid:
            raise UserError(f"column '{name}' of {self._path} holds {column.type}: labels are whole numbers") from None
        wrong = np.flatnonzero((values != np.floor(values)) | (values < -1) | ((values > 1) & (len(self._columns) > 1)))
        if wrong.size:
            raise UserError(
                f"row {rows.start + int(wrong[0])} of {self._path} has {values[wrong[0]]:g} in column '{name}': labels "
                "are whole numbers from 0, names, or 0 and 1 in several columns; or give --label-kind numbers"
            )
        return values.astype(np.int64)

    def finish(self) -> list[str] | None:
        """Named classes are numbered ascending."""
        if len(self._columns) > 1:
            return list(self._columns)
        if not self._numbers:
            return None
        names = sorted(self._numbers)
        rank = np.full(len(names) + 1, -1, np.int64)
        rank[[self._numbers[name] for name in names]] = np.arange(len(names))
        for begin, end in pieces(len(self._y), PIECE_VALUES):
            self._y[begin:end] = rank[self._y[begin:end]]
        return names


class _NumberFile:
    """y.npy, written batch by batch: numbers that are to be predicted, NaN where one is not known."""

    def __init__(self, source: Source, num_rows: int, folder: Path) -> None:
        self._path, self._columns = source.table.path, source.roles.labels
        shape = (num_rows, len(self._columns)) if len(self._columns) > 1 else (num_rows,)
        self._y = create_npy(folder / "y.npy", shape, np.dtype(np.float32))

    def add(self, batch: pa.RecordBatch, rows: slice) -> None:
        found = np.stack([self._numbers(batch.column(name), name, rows) for name in self._columns], 1)
        self._y[rows] = found.reshape(self._y[rows].shape)

    def _numbers(self, column: pa.Array, name: str, rows: slice) -> Array:
        try:
            with np.errstate(over="ignore"):  # too large for float32: infinite, which is refused
                values = numbers_of(column).astype(np.float32)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UserError(
                f"column '{name}' of {self._path} holds {column.type}, and numbers are to be predicted: give numbers"
            ) from None
        infinite = np.flatnonzero(np.isinf(values))
        if infinite.size:
            raise UserError(
                f"row {rows.start + int(infinite[0])} of {self._path} has an infinite number in column '{name}': give "
                "a number, or none where it is not known"
            )
        return values

    def finish(self) -> list[str] | None:
        return list(self._columns) if len(self._columns) > 1 else None


def _label_file(job: Job, source: Source, num_rows: int, folder: Path) -> _LabelFile | _NumberFile:
    return (_NumberFile if job.label_kind == "numbers" else _LabelFile)(source, num_rows, folder)


def _new_mask(folder: Path, role: str, num_rows: int) -> Array:
    return create_npy(folder / f"{role}_mask.npy", (num_rows,), np.dtype(np.bool_))
