"""Files about vertices, read in pieces: row k of every file is about vertex k."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.convert import signed
from weft.graph.edgelist import read_npy
from weft.graph.files import Array
from weft.graph.tables import kind_of
from weft.graph.times import to_times
from weft.graph.vertexdata import VERTEX_DATA, check_column_name, check_free_name
from weft.out_of_core.budget import pieces
from weft.out_of_core.edgefiles import Numbers
from weft.out_of_core.job import Job

PIECE_VALUES = 1 << 20
BF16_EXPONENT = 0x7F80  # all ones: infinite or no number


@dataclass(frozen=True)
class VertexFile:
    """Rows of an npy file, as they go into an array of the parts."""

    name: str  # of the array
    numbers: Numbers
    shape: tuple[int, ...]  # [N, ...]
    dtype: np.dtype[Any]  # of the array
    convert: Callable[[Array, int], Array]  # rows of the file, of which the first is vertex k, to rows of the array
    bfloat16: bool = False

    @property
    def row_bytes(self) -> int:
        values = int(np.prod(self.shape[1:], dtype=np.int64))
        return values * (self.numbers.dtype.itemsize + self.dtype.itemsize)

    def read(self, begin: int, end: int) -> Array:
        values = int(np.prod(self.shape[1:], dtype=np.int64))
        raw = self.numbers.read(begin * values, end * values).reshape(end - begin, *self.shape[1:])
        return self.convert(raw, begin)

    def in_pieces(self) -> Iterator[tuple[int, Array]]:
        """(number of the first row, rows), all of them."""
        step = max(1, PIECE_VALUES * self.dtype.itemsize // max(1, self.row_bytes))
        for begin, end in pieces(self.shape[0], step):
            yield begin, self.read(begin, end)


def open_vertex_files(job: Job) -> dict[str, VertexFile]:
    """Features, labels and further columns, by the name of the array that they become."""
    files = {}
    if job.features is not None:
        files["x"] = _open_features(job.features)
    if job.labels is not None:
        files["y"] = _open_targets(job.labels) if job.label_kind == "numbers" else _open_labels(job.labels)
    for name, path in job.vertex_data.items():
        check_column_name(name)
        check_free_name(name)
        if name in VERTEX_DATA and name != "time":
            raise UserError(f"vertex data '{name}' has an option of its own: use --features, --labels or --split")
        files[name] = _open_times(path) if name == "time" else _open_column(name, path)
    return files


def declared_nodes(job: Job, files: Mapping[str, VertexFile]) -> int | None:
    """How many vertices there are by option or files, if any says so."""
    known = [(str(job.num_nodes), job.num_nodes)] if job.num_nodes is not None else []
    known += [(str(file.numbers.path), file.shape[0]) for file in files.values()]
    for name, count in known[1:]:
        if count != known[0][1]:
            raise UserError(f"{name} has {count} rows for {known[0][1]} vertices: give one row per vertex")
    return known[0][1] if known else None


def _open_npy(path: Path, what: str) -> tuple[Array, Numbers]:
    if kind_of(path) != ".npy":
        also = " or a table (csv, parquet)" * (what == "features")
        raise UserError(f"{path} is no npy file{also}: beside edge files, {what} are one with a row for each vertex")
    array = read_npy(path)
    if not array.flags.c_contiguous:
        raise UserError(f"{path} is stored column by column: save it row by row (numpy.ascontiguousarray)")
    return array, Numbers(path, array.dtype, getattr(array, "offset", 0))


def _open_features(path: Path) -> VertexFile:
    """float32; other numbers become that, and int16 or untyped pairs of bytes are the bits of bfloat16."""
    array, numbers = _open_npy(path, "features")
    if array.ndim != 2:
        raise UserError(f"{path} has shape {list(array.shape)}: features are one row per vertex, [N, F]")
    if array.dtype.itemsize == 2 and array.dtype.kind in "iV":
        bits = numbers._replace(dtype=np.dtype(np.int16))

        def check_bits(rows: Array, first: int) -> Array:
            _check_finite((rows & BF16_EXPONENT) != BF16_EXPONENT, path, first)
            return rows

        return VertexFile("x", bits, array.shape, np.dtype(np.int16), check_bits, bfloat16=True)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype}: features are numbers")

    def as_float(rows: Array, first: int) -> Array:
        values = rows.astype(np.float32, copy=False)
        _check_finite(np.isfinite(values), path, first)
        return values

    return VertexFile("x", numbers, array.shape, np.dtype(np.float32), as_float)


def _check_finite(finite: Array, path: Path, first: int) -> None:
    if not finite.all():
        row = first + int(np.flatnonzero(~finite.all(1))[0])
        raise UserError(f"{path} has NaN or infinite values, first in row {row}: replace them before training")


def _open_labels(path: Path) -> VertexFile:
    """int64 [N], -1 unknown, or int8 [N, C] of 0, 1 and -1."""
    array, numbers = _open_npy(path, "labels")
    shape = array.shape[:1] if array.ndim == 2 and array.shape[1] == 1 else array.shape
    if len(shape) not in (1, 2) or array.dtype.kind not in "biuf":
        raise UserError(
            f"{path} holds {array.dtype} {list(array.shape)}: labels are whole numbers [N], or 0 and 1 [N, C]"
        )
    several = len(shape) == 2
    dtype = np.dtype(np.int8 if several else np.int64)

    def as_labels(rows: Array, first: int) -> Array:
        known = np.nan_to_num(rows, nan=-1) if rows.dtype.kind == "f" else rows
        labels = known.astype(np.int64)
        wrong = (labels != known) | (labels < -1) | ((labels > 1) if several else False)
        if wrong.any():
            row = first + int(np.flatnonzero(wrong.reshape(len(rows), -1).any(1))[0])
            rule = "0, 1 or -1 (unknown)" if several else "whole numbers from 0, or -1 (unknown)"
            raise UserError(
                f"{path} has a label in row {row} that cannot be: labels are {rule}; or give --label-kind numbers"
            )
        return labels.astype(dtype, copy=False)

    return VertexFile("y", numbers, shape, dtype, as_labels)


def _open_targets(path: Path) -> VertexFile:
    """float32 [N] or [N, T], NaN unknown: numbers that are to be predicted."""
    array, numbers = _open_npy(path, "labels")
    shape = array.shape[:1] if array.ndim == 2 and array.shape[1] == 1 else array.shape
    if len(shape) not in (1, 2) or array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype} {list(array.shape)}: numbers to predict are [N] or [N, T]")

    def as_targets(rows: Array, first: int) -> Array:
        with np.errstate(over="ignore"):
            values = rows.astype(np.float32)
        infinite = np.isinf(values).reshape(len(rows), -1).any(1)
        if infinite.any():
            row = first + int(np.flatnonzero(infinite)[0])
            raise UserError(f"{path} has an infinite label in row {row}: give a number, or NaN where it is not known")
        return values

    return VertexFile("y", numbers, shape, np.dtype(np.float32), as_targets)


def _open_column(name: str, path: Path) -> VertexFile:
    """Numbers of the type that the file has, unsigned ones as signed."""
    array, numbers = _open_npy(path, f"vertex data '{name}'")
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype} {list(array.shape)}: vertex data '{name}' are numbers, [N, ...]")
    dtype = signed(array.dtype)

    def as_signed(rows: Array, first: int) -> Array:
        values = rows.astype(dtype, copy=False)
        if dtype.kind == "f":
            _check_finite(np.isfinite(values).reshape(len(values), -1), path, first)
        return values

    return VertexFile(name, numbers, array.shape, dtype, as_signed)


def _open_times(path: Path) -> VertexFile:
    """float64 [N], NaN unknown: at which time each vertex is looked at."""
    array, numbers = _open_npy(path, "times of vertices")
    if (
        array.ndim == 0
        or array.shape not in (array.shape[:1], (*array.shape[:1], 1))
        or array.dtype.kind not in "biufM"
    ):
        raise UserError(f"{path} holds {array.dtype} {list(array.shape)}: times of vertices are numbers or dates, [N]")

    def as_times(rows: Array, first: int) -> Array:
        return np.asarray(to_times(rows, len(rows), f"the times of vertices in {path}"))

    return VertexFile("time", numbers, array.shape[:1], np.dtype(np.float64), as_times)


def open_mask(name: str, path: Path) -> VertexFile:
    array, numbers = _open_npy(path, "splits")
    return VertexFile(name, numbers, array.shape, array.dtype, lambda rows, first: rows)


def count_classes(comm: Communicator, job: Job, labels: VertexFile | None) -> int:
    """The classes that are asked for, or as many as the labels show; labels beyond those are refused."""
    if labels is None:
        return job.num_classes or 0
    if labels.dtype.kind == "f":
        if job.num_classes is not None:
            raise UserError("the labels are numbers to predict: leave --num-classes out")
        return 0
    if len(labels.shape) == 2:
        if job.num_classes not in (None, labels.shape[1]):
            raise UserError(f"labels have {labels.shape[1]} columns for {job.num_classes} classes: give one each")
        return labels.shape[1]
    highest = -1
    if comm.worker == 0:
        highest = max((int(rows.max()) for _, rows in labels.in_pieces()), default=-1)
    found = int(comm.broadcast(torch.tensor([highest + 1]), 0, "control", "the number of classes"))
    if job.num_classes is not None and found > job.num_classes:
        raise UserError(f"labels reach {found - 1}, beyond the {job.num_classes} classes: give more --num-classes")
    return found if job.num_classes is None else job.num_classes
