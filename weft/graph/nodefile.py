"""What files say about vertices: ids, features, labels, splits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weft.errors import UserError, unknown
from weft.graph.edgelist import read_npy
from weft.graph.files import Array
from weft.graph.ids import as_integers, normal_ids
from weft.graph.npz import dense_features, read_npz
from weft.graph.preparation import FeatureChoices, FeatureTable
from weft.graph.tables import (
    PARQUET,
    TEXT,
    TableFile,
    count_rows,
    has_leading_zeros,
    kind_of,
    open_table,
    read_batches,
    to_numpy,
)
from weft.graph.times import times_of_column

ID_NAMES = ("id", "node", "node_id", "nodeid", "vertex", "vertex_id", "original_id", "paper_id")
LABEL_NAMES = ("label", "y", "class", "labels", "target", "subject")
SPLIT_NAMES = ("split", "set", "fold")
ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("", "none", "-", "unlabeled", "unlabelled"), ""),
}
NO_CHOICES = FeatureChoices()
MASK_NAMES = ("train_mask", "val_mask", "test_mask")
Masks = dict[str, Array]  # train, val, test -> boolean [N] or [S, N]


@dataclass(frozen=True)
class Labels:
    y: Array  # [N] or [N, C]; -1 unknown of whole numbers, NaN of others
    class_names: tuple[str, ...] | None = None
    are_names: bool = False  # y numbers the class names that the file has


@dataclass(frozen=True)
class NodeFile:
    """Rows about vertices; row k is about ids[k], or about vertex k where the file has no ids."""

    path: Path
    num_rows: int
    ids: Array | None = None
    x: Array | None = None  # of a file of arrays
    table: FeatureTable | None = None  # of a table: what features are made of when it is known which vertices train
    labels: Labels | None = None
    masks: Masks | None = None
    id_name: str | None = None  # of the column of ids in a table
    times: Array | None = None  # float64, NaN: unknown; or dates

    def keep(self, rows: Array) -> "NodeFile":
        """Labels and splits of some rows, which are numbers of rows."""
        labels, masks = self.labels, self.masks
        return replace(
            self,
            num_rows=rows.size,
            ids=None if self.ids is None else self.ids[rows],
            labels=None if labels is None else replace(labels, y=labels.y[rows]),
            masks=None if masks is None else {role: mask[..., rows] for role, mask in masks.items()},
            times=None if self.times is None else self.times[rows],
        )


def read_node_file(
    path: Path,
    what: str,  # "features", "labels" or "split": what an unnamed column or a bare array means
    id_column: str | None = None,
    label_columns: Sequence[str] = (),
    split_column: str | None = None,
    header: bool | None = None,
    num_nodes: int | None = None,  # of the graph, for splits given as lists of vertex numbers
    choices: FeatureChoices = NO_CHOICES,  # which columns of a table are features
    time_column: str | None = None,  # of a table, if it has one of this name
) -> NodeFile:
    """A csv, parquet, npy or npz file; a table may hold features, labels and split in different columns."""
    kind = kind_of(path)
    if kind in (*TEXT, *PARQUET):
        return _from_table(path, what, id_column, label_columns, split_column, header, choices, time_column)
    if kind == ".npy":
        return _from_npy(path, what)
    if kind == ".npz":
        return _from_npz(path, what, id_column, num_nodes)
    raise UserError(f"{path} is no file of {what} that weft reads: give csv, tsv, parquet, npy or npz")


def _from_table(
    path: Path,
    what: str,
    id_column: str | None,
    label_columns: Sequence[str],
    split_column: str | None,
    header: bool | None,
    choices: FeatureChoices,
    time_column: str | None,
) -> NodeFile:
    asked = [*label_columns, *(name for name in (id_column, split_column) if name is not None)]
    names = (*ID_NAMES, *LABEL_NAMES, *SPLIT_NAMES, *MASK_NAMES, *asked, "x", "features", "feat", *choices.features)
    table = open_table(path, names, header)
    roles = find_roles(table, id_column, label_columns, split_column, choices.features if what == "features" else ())
    ids, labels, split, masks = roles
    features: tuple[str, ...] = ()
    time = time_column if time_column in table.columns else None
    rest = [name for name in table.columns if name not in (ids, split, time, *masks)]
    if what == "features":
        features = choices.select(path, table.columns, [name for name in rest if name not in labels])
    if what == "labels":
        labels = labels or rest
        if not labels:
            raise UserError(f"{path} has no label column (it has {', '.join(table.columns)})")
    if what == "split":
        labels = []
        if split is None and not masks and len(rest) == 1:
            split = rest[0]
        if split is None and not masks:
            raise UserError(f"{path} has no column 'split' (it has {', '.join(table.columns)})")
    as_text = {ids: pa.string()} if ids is not None and has_leading_zeros(table) else {}
    plain = [name for name in (ids, split, time, *masks, *labels) if name]
    whole = _read(table, plain, as_text)
    rows = len(whole) if plain else count_rows(table)
    if rows == 0:
        raise UserError(f"{path} has no rows: nothing to read")
    return NodeFile(
        path,
        rows,
        ids=None if ids is None else _ids(path, whole.column(ids), bool(as_text)),
        table=FeatureTable(table, features) if what == "features" else None,
        labels=_labels(path, [whole.column(name) for name in labels], labels) if labels else None,
        masks=_masks(path, whole, split, masks),
        id_name=ids,
        times=None if time is None else times_of_column(whole.column(time), f"column '{time}' of {path}"),
    )


class Roles(NamedTuple):
    """Columns of a table that are no features."""

    ids: str | None
    labels: list[str]
    split: str | None
    masks: list[str]


def find_roles(
    table: TableFile,
    id_column: str | None,
    label_columns: Sequence[str],
    split_column: str | None,
    features: Collection[str] = (),  # columns that the user names as features, which no guess takes away
) -> Roles:
    """The columns that are asked for, else those of a known name."""
    guessed = replace(table, columns=tuple(name for name in table.columns if name not in features))
    ids = table.pick("id", id_column, ()) or guessed.pick("id", None, ID_NAMES)
    split = table.pick("split", split_column, ()) or guessed.pick("split", None, SPLIT_NAMES)
    masks = [name for name in MASK_NAMES if name in guessed.columns]
    for name in label_columns:
        table.pick("label", name, ())
    labels = list(label_columns)
    found = guessed.pick("label", None, LABEL_NAMES)
    if not labels and found is not None and found not in (ids, split, *masks):
        labels = [found]
    return Roles(ids, labels, split, masks)


def _read(table: TableFile, columns: list[str], types: dict[str, pa.DataType]) -> pa.Table:
    kept = list(read_batches(table, columns, types))
    if not kept:
        return pa.table({name: pa.array([], pa.int64()) for name in columns})
    try:
        return pa.Table.from_batches(kept)
    except pa.ArrowInvalid as error:
        raise UserError(f"{table.path} changes its columns' types half-way ({error})") from None


def _ids(path: Path, column: pa.ChunkedArray, as_text: bool) -> Array:
    """as_text: integers were read as text, and become integers again where no two become one by that."""
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise UserError(f"row {row} of {path} has no id: give every vertex one")
    ids = normal_ids(to_numpy(column), f"the ids of {path}")
    numbers = as_integers(ids) if as_text else None
    return ids if numbers is None else numbers


def _labels(path: Path, columns: list[pa.ChunkedArray], names: list[str]) -> Labels:
    values = [to_numpy(column) for column in columns]
    if len(values) == 1 and values[0].dtype.kind == "U":
        classes, codes = np.unique(values[0], return_inverse=True)
        if classes.size and classes[0] == "":
            return Labels(codes.astype(np.int64) - 1, tuple(str(name) for name in classes[1:]), are_names=True)
        return Labels(codes.astype(np.int64), tuple(str(name) for name in classes), are_names=True)
    for name, value in zip(names, values, strict=True):
        if value.dtype.kind not in "biuf":
            raise UserError(f"column '{name}' of {path} holds {value.dtype}: labels are whole numbers or names")
    if len(values) == 1:
        return Labels(values[0])
    return Labels(np.stack([np.asarray(value, np.float64) for value in values], 1), tuple(names))


def _masks(path: Path, table: pa.Table, split: str | None, masks: list[str]) -> Masks | None:
    if masks:
        return {name.removesuffix("_mask"): to_numpy(table.column(name)) for name in masks}
    if split is None:
        return None
    return masks_of_roles(path, to_numpy(table.column(split)))


def masks_of_roles(path: Path, values: Array) -> Masks:
    """A column of 'train', 'val', 'test' (and nothing, for vertices in no split) as three masks."""
    if values.dtype.kind != "U":
        raise UserError(f"the split of {path} holds {values.dtype}: write train, val or test in each row")
    kinds, codes = np.unique(values, return_inverse=True)
    roles = []
    for kind in kinds:
        if kind.strip().lower() not in ROLES:
            raise UserError(f"{path}: {unknown('split', str(kind), ('train', 'val', 'test'))}")
        roles.append(ROLES[kind.strip().lower()])
    return {role: np.array([name == role for name in roles])[codes] for role in ("train", "val", "test")}


def _from_npy(path: Path, what: str) -> NodeFile:
    array = read_npy(path)
    if array.ndim == 0 or array.shape[0] == 0:
        raise UserError(f"{path} is empty: give one row per vertex")
    if what == "features":
        return NodeFile(path, array.shape[0], x=array)
    if what == "labels":
        return NodeFile(path, array.shape[0], labels=_array_labels(array))
    return NodeFile(path, array.shape[0], masks=masks_of_roles(path, array))


def _from_npz(path: Path, what: str, id_name: str | None, num_nodes: int | None) -> NodeFile:
    arrays = read_npz(path)
    if id_name is not None and id_name not in arrays:
        raise UserError(f"{path}: {unknown('array', id_name, arrays)}")
    id_key = id_name or next((name for name in ("ids", "original_ids", *ID_NAMES) if name in arrays), None)
    ids = None if id_key is None else normal_ids(arrays.pop(id_key), f"the ids of {path}")
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    x = dense_features(arrays)
    x = next((arrays[name] for name in ("features", "feat") if name in arrays), None) if x is None else x
    y = next((arrays[name] for name in LABEL_NAMES if name in arrays), None)
    masks = _array_masks(path, arrays, num_nodes or _rows(ids, x, y))
    if what == "features" and x is None and y is None and masks is None:
        x = only
    if what == "labels" and y is None:
        y = only
    found = {"features": x, "labels": y, "split": masks}[what]
    if found is None and not (what == "features" and ids is not None):
        raise UserError(f"{path} has no {what} (its arrays: {', '.join(sorted(arrays))})")
    rows = _rows(ids, x, y)
    if masks is not None and ids is None and x is None and y is None:
        rows = next(iter(masks.values())).shape[-1]
    return NodeFile(path, rows, ids, x, labels=None if y is None else _array_labels(y), masks=masks)


def _rows(*arrays: Array | None) -> int:
    return next((array.shape[0] for array in arrays if array is not None), 0)


def _array_labels(array: Array) -> Labels:
    if array.dtype.kind == "U" and array.ndim == 1:
        classes, codes = np.unique(array, return_inverse=True)
        return Labels(codes.astype(np.int64), tuple(str(name) for name in classes), are_names=True)
    return Labels(array)


def _array_masks(path: Path, arrays: dict[str, Array], num_rows: int) -> Masks | None:
    """Boolean masks, from masks or from lists of vertex numbers."""
    masks: Masks = {}
    for role in ("train", "val", "test"):
        for name in (f"{role}_mask", role, f"{role}_idx", *(("valid", "valid_idx") if role == "val" else ())):
            if name in arrays:
                masks[role] = arrays[name]
                break
    if not masks:
        return None
    if all(mask.dtype == np.bool_ for mask in masks.values()):
        return masks
    highest = max(int(mask.max(initial=-1)) for mask in masks.values())
    size = max(num_rows, highest + 1)
    listed: Masks = {}
    for role, rows in masks.items():
        if rows.dtype.kind not in "iu" or rows.ndim != 1 or int(rows.min(initial=0)) < 0:
            raise UserError(f"'{role}' of {path} is neither a boolean mask nor a list of vertex numbers")
        listed[role] = np.zeros(size, np.bool_)
        listed[role][rows] = True
    return listed
