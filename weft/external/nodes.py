"""What files say about vertices, read in pieces: row k of every file is about vertex k."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import UserError
from weft.external.fingerprint import pieces
from weft.external.job import Job
from weft.external.source import Numbers
from weft.graph.edgelist import read_npy
from weft.graph.files import Array
from weft.graph.ingest import is_split_spec
from weft.graph.nodefile import read_node_file
from weft.graph.tables import kind_of
from weft.kernels.reference import splitmix64

ROLES = ("train", "val", "test")
PIECE_VALUES = 1 << 20
BF16_EXPONENT = 0x7F80  # all ones: infinite or no number


@dataclass(frozen=True)
class RowFile:
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


@dataclass(frozen=True)
class NodeFiles:
    features: RowFile | None
    labels: RowFile | None

    @property
    def num_features(self) -> int:
        return 0 if self.features is None else self.features.shape[1]


def open_nodes(job: Job) -> NodeFiles:
    features = None if job.features is None else _open_features(job.features)
    labels = None if job.labels is None else _open_labels(job.labels)
    if job.split is not None:
        _check_split(job.split)
    return NodeFiles(features, labels)


def declared_nodes(job: Job, files: NodeFiles) -> int | None:
    """How many vertices there are by option or files, if any says so."""
    known = [(str(job.num_nodes), job.num_nodes)] if job.num_nodes is not None else []
    for file in (files.features, files.labels):
        if file is not None:
            known.append((str(file.numbers.path), file.shape[0]))
    for name, count in known[1:]:
        if count != known[0][1]:
            raise UserError(f"{name} has {count} rows for {known[0][1]} vertices: give one row per vertex")
    return known[0][1] if known else None


def _open_npy(path: Path, what: str) -> tuple[Array, Numbers]:
    if kind_of(path) != ".npy":
        raise UserError(f"{path} is no npy file: beside edge files, {what} are an npy file with a row for each vertex")
    array = read_npy(path)
    if not array.flags.c_contiguous:
        raise UserError(f"{path} is stored column by column: save it row by row (numpy.ascontiguousarray)")
    return array, Numbers(path, array.dtype, getattr(array, "offset", 0))


def _open_features(path: Path) -> RowFile:
    """float32; other numbers become that, and int16 or untyped pairs of bytes are the bits of bfloat16."""
    array, numbers = _open_npy(path, "features")
    if array.ndim != 2:
        raise UserError(f"{path} has shape {list(array.shape)}: features are one row per vertex, [N, F]")
    if array.dtype.itemsize == 2 and array.dtype.kind in "iV":
        bits = numbers._replace(dtype=np.dtype(np.int16))

        def check_bits(rows: Array, first: int) -> Array:
            _check_finite((rows & BF16_EXPONENT) != BF16_EXPONENT, path, first)
            return rows

        return RowFile("x", bits, array.shape, np.dtype(np.int16), check_bits, bfloat16=True)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {array.dtype}: features are numbers")

    def as_float(rows: Array, first: int) -> Array:
        values = rows.astype(np.float32, copy=False)
        _check_finite(np.isfinite(values), path, first)
        return values

    return RowFile("x", numbers, array.shape, np.dtype(np.float32), as_float)


def _check_finite(finite: Array, path: Path, first: int) -> None:
    if not finite.all():
        row = first + int(np.flatnonzero(~finite.all(1))[0])
        raise UserError(f"{path} has NaN or infinite values, first in row {row}: replace them before training")


def _open_labels(path: Path) -> RowFile:
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
            raise UserError(f"{path} has a label in row {row} that cannot be: labels are {rule}")
        return labels.astype(dtype, copy=False)

    return RowFile("y", numbers, shape, dtype, as_labels)


def count_classes(comm: Communicator, job: Job, labels: RowFile | None) -> int:
    """The classes that are asked for, or as many as the labels show; labels beyond those are refused."""
    if labels is None:
        return job.num_classes or 0
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


# -- splits -----------------------------------------------------------------------------------------------------


def write_masks(comm: Communicator, job: Job, labels: RowFile | None, num_nodes: int, folder: Path) -> list[RowFile]:
    """The split as one boolean npy file for each role that it has; worker 0 writes them, all read them."""
    if job.split is None:
        return []
    if comm.worker == 0:
        if is_split_spec(job.split):
            _draw_masks(job.split, labels, num_nodes, folder)
        else:
            _copy_masks(job.split, num_nodes, folder)
        train = folder / "train_mask.npy"
        if train.exists() and not np.load(train, mmap_mode="r").any():
            raise UserError(f"split '{job.split}' has no training vertex: mark some vertices 'train'")
    comm.barrier("until the split is written")
    paths = {f"{role}_mask": folder / f"{role}_mask.npy" for role in ROLES}
    return [_open_mask(name, path) for name, path in paths.items() if path.exists()]


def _open_mask(name: str, path: Path) -> RowFile:
    array, numbers = _open_npy(path, "splits")
    return RowFile(name, numbers, array.shape, array.dtype, lambda rows, first: rows)


def _check_split(split: str) -> None:
    if is_split_spec(split):
        _parse_random(split)
        return
    for name in split.split(","):
        if not Path(name).is_file():
            raise UserError(f"{name} does not exist: give a split as files, or as random:0.6,0.2@SEED")


def _draw_masks(spec: str, labels: RowFile | None, num_nodes: int, folder: Path) -> None:
    """Every labelled vertex draws for itself, by a hash of seed and id, so that no list of all of them is needed."""
    train, val, seed = _parse_random(spec)
    files = {role: _new_mask(folder, role, num_nodes) for role in ROLES}
    for begin, end in pieces(num_nodes, PIECE_VALUES):
        drawn = uniform(np.arange(begin, end), seed)
        known: Array = np.ones(end - begin, np.bool_)
        if labels is not None:
            known = np.asarray((labels.read(begin, end).reshape(end - begin, -1) >= 0).all(1))
        files["train"][begin:end] = known & (drawn < train)
        files["val"][begin:end] = known & (drawn >= train) & (drawn < train + val)
        files["test"][begin:end] = known & (drawn >= train + val)


def _parse_random(spec: str) -> tuple[float, float, int]:
    kind, _, seed = spec.partition("@")
    name, _, fractions = kind.partition(":")
    try:
        train, val = (float(part) for part in (fractions or "0.6,0.2").split(","))
        if name == "random" and train > 0 and val >= 0 and train + val <= 1:
            return train, val, int(seed or 0)
    except ValueError:
        pass
    raise UserError(f"split '{spec}' is not understood here: write random:0.6,0.2@SEED (at most 1 together), or files")


def _copy_masks(files: str, num_nodes: int, folder: Path) -> None:
    """From an npz or npy file as `weft ingest` takes it, or from TRAIN.npy,VAL.npy,TEST.npy."""
    paths = [Path(name) for name in files.split(",")]
    if len(paths) == 1:
        masks = read_node_file(paths[0], "split", num_nodes=num_nodes).masks or {}
    elif len(paths) == 3:
        masks = dict(zip(ROLES, (read_npy(path) for path in paths), strict=True))
    else:
        raise UserError(f"split '{files}' is not understood: give one file, or TRAIN.npy,VAL.npy,TEST.npy")
    for role, given in masks.items():
        mask = _new_mask(folder, role, num_nodes)
        if given.dtype == np.bool_ and given.shape == (num_nodes,):
            mask[:] = given
        elif given.dtype.kind in "iu" and given.ndim == 1 and _within(given, num_nodes):
            mask[given] = True
        else:
            raise UserError(
                f"the {role} split of {files} is {given.dtype} {list(given.shape)}: give a boolean mask of {num_nodes} "
                "vertices, or their numbers"
            )


def _within(numbers: Array, num_nodes: int) -> bool:
    return numbers.size == 0 or (int(numbers.min()) >= 0 and int(numbers.max()) < num_nodes)


def _new_mask(folder: Path, role: str, num_nodes: int) -> Array:
    return np.lib.format.open_memmap(folder / f"{role}_mask.npy", mode="w+", dtype=np.bool_, shape=(num_nodes,))


# -- draws ------------------------------------------------------------------------------------------------------


def hashed(ids: Array, seed: int) -> Array:
    """64 bits for every id (int64), uint64."""
    key = splitmix64(torch.tensor([seed]))
    bits: Array = splitmix64(torch.from_numpy(ids) ^ key).numpy().view(np.uint64)
    return bits


def uniform(ids: Array, seed: int) -> Array:
    """A number in [0, 1) for every id."""
    drawn: Array = (hashed(ids, seed) >> np.uint64(11)) * 2.0**-53
    return drawn
