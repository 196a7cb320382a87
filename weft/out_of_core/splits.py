"""Which vertices train, validate and test: drawn, or from files."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.edgelist import read_npy
from weft.graph.files import Array, create_npy
from weft.graph.ingest import is_split_spec
from weft.graph.nodefile import read_node_file
from weft.graph.vertexdata import SPLITS
from weft.out_of_core.budget import pieces
from weft.out_of_core.draws import uniform
from weft.out_of_core.job import Job
from weft.out_of_core.vertexfiles import PIECE_VALUES, VertexFile, open_mask


def write_masks(
    comm: Communicator, job: Job, files: Mapping[str, VertexFile], num_nodes: int, folder: Path
) -> dict[str, VertexFile]:
    """The split as a boolean npy file for each of train, val and test that it has; worker 0 writes, all read."""
    if job.split is None:
        return {}
    if comm.worker == 0:
        write_split(job.split, files, num_nodes, folder)
    comm.barrier("until the split is written")
    paths = {f"{role}_mask": folder / f"{role}_mask.npy" for role in SPLITS}
    return {name: open_mask(name, path) for name, path in paths.items() if path.exists()}


def write_split(split: str, files: Mapping[str, VertexFile], num_nodes: int, folder: Path) -> None:
    """The masks of a split, in a folder. files: the labels are "y", the times "time", where there are any."""
    if is_time(split):
        _write_masks_by_time(split, files, num_nodes, folder)
    elif is_split_spec(split):
        _draw_masks(split, files.get("y"), num_nodes, folder)
    else:
        _copy_masks(split, num_nodes, folder)
    train = folder / "train_mask.npy"
    if train.exists() and not np.load(train, mmap_mode="r").any():
        raise UserError(f"split '{split}' has no training vertex: mark some vertices 'train'")


def check_split(split: str) -> None:
    if is_split_spec(split):
        _parse_time(split) if is_time(split) else _parse_random(split)
        return
    for name in split.split(","):
        if not Path(name).is_file():
            raise UserError(f"{name} does not exist: give a split as files, or as random:0.6,0.2@SEED")


def _draw_masks(spec: str, labels: VertexFile | None, num_nodes: int, folder: Path) -> None:
    """Every labelled vertex draws for itself, by a hash of seed and id, so that no list of all of them is needed."""
    train, val, seed = _parse_random(spec)
    files = {role: _new_mask(folder, role, num_nodes) for role in SPLITS}
    for begin, end in pieces(num_nodes, PIECE_VALUES):
        drawn, known = uniform(np.arange(begin, end), seed), _labelled(labels, begin, end)
        files["train"][begin:end] = known & (drawn < train)
        files["val"][begin:end] = known & (drawn >= train) & (drawn < train + val)
        files["test"][begin:end] = known & (drawn >= train + val)


def _labelled(labels: VertexFile | None, begin: int, end: int) -> Array:
    """Which of these vertices have a label; without labels all."""
    if labels is None:
        return np.ones(end - begin, np.bool_)
    rows = labels.read(begin, end).reshape(end - begin, -1)
    return np.asarray((rows >= 0).all(1) if rows.dtype.kind != "f" else (~np.isnan(rows)).any(1))


def is_time(spec: str) -> bool:
    return spec.partition("@")[0].partition(":")[0] == "time"


def _write_masks_by_time(spec: str, files: Mapping[str, VertexFile], num_nodes: int, folder: Path) -> None:
    """The earliest labelled vertices train, later ones validate, the last test; those of one time stay together."""
    train, val = _parse_time(spec)
    times = files.get("time")
    if times is None:
        raise UserError("there are no times of vertices to be split by: name their column with --vertex-time-column")

    def of_piece(begin: int, end: int) -> Array:
        """The times of labelled vertices, NaN of others."""
        return np.where(_labelled(files.get("y"), begin, end), times.read(begin, end), np.nan)

    def known() -> Iterator[Array]:
        for begin, end in pieces(num_nodes, PIECE_VALUES):
            found = of_piece(begin, end)
            yield found[~np.isnan(found)]

    count = sum(found.size for found in known())
    if not count:
        raise UserError("no vertex has both a label and a time: there is nothing to split")
    last_train, last_val = (nth_smallest(known, max(round(part * count), 1) - 1) for part in (train, train + val))
    masks = {role: _new_mask(folder, role, num_nodes) for role in SPLITS}
    for begin, end in pieces(num_nodes, PIECE_VALUES):
        found = of_piece(begin, end)
        masks["train"][begin:end] = found <= last_train
        masks["val"][begin:end] = (found > last_train) & (found <= last_val)
        masks["test"][begin:end] = (found > last_train) & (found > last_val)


def nth_smallest(values: Callable[[], Iterator[Array]], rank: int) -> float:
    """The value of a rank, counted from 0, among float64 values that come in pieces: no list of all is kept.

    `values` goes over all of them, and is called once for each of four digits of 16 bits.
    """
    prefix = 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, np.int64)
        for piece in values():
            bits = (piece + 0.0).view(np.uint64)  # -0.0 becomes 0.0, which it equals
            keys = np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))  # ascending as the numbers are
            if shift < 48:
                keys = keys[keys >> np.uint64(shift + 16) == np.uint64(prefix)]
            digits = (keys >> np.uint64(shift)) & np.uint64(0xFFFF)
            counts += np.bincount(digits.astype(np.int64), minlength=1 << 16)
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, rank, "right"))
        rank -= int(upto[digit] - counts[digit])
        prefix = prefix << 16 | digit
    key = np.array([prefix], np.uint64)
    return float((key ^ np.uint64(1 << 63) if prefix >> 63 else ~key).view(np.float64)[0])


def _parse_time(spec: str) -> tuple[float, float]:
    kind, at, _ = spec.partition("@")
    try:
        train, val = (float(part) for part in (kind.partition(":")[2] or "0.8,0.1").split(","))
        if not at and train > 0 and val >= 0 and train + val <= 1:
            return train, val
    except ValueError:
        pass
    raise UserError(f"split '{spec}' is not understood: write time:0.8,0.1 (at most 1 together)")


def _parse_random(spec: str) -> tuple[float, float, int]:
    kind, _, seed = spec.partition("@")
    name, _, fractions = kind.partition(":")
    try:
        train, val = (float(part) for part in (fractions or "0.6,0.2").split(","))
        if name == "random" and train > 0 and val >= 0 and train + val <= 1:
            return train, val, int(seed or 0)
    except ValueError:
        pass
    raise UserError(f"split '{spec}' is not understood here: write random:0.6,0.2@SEED or time:0.8,0.1, or files")


def _copy_masks(files: str, num_nodes: int, folder: Path) -> None:
    """From an npz or npy file as `weft ingest` takes it, or from TRAIN.npy,VAL.npy,TEST.npy."""
    paths = [Path(name) for name in files.split(",")]
    if len(paths) == 1:
        masks = read_node_file(paths[0], "split", num_nodes=num_nodes).masks or {}
    elif len(paths) == 3:
        masks = dict(zip(SPLITS, (read_npy(path) for path in paths), strict=True))
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
    return create_npy(folder / f"{role}_mask.npy", (num_nodes,), np.dtype(np.bool_))
