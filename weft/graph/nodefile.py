"""What files say about vertices: ids, features, labels, splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from weft.errors import UserError, unknown
from weft.graph.edgelist import read_npy
from weft.graph.files import Array
from weft.graph.ids import normal_ids
from weft.graph.npz import dense_features, read_npz
from weft.graph.tables import PARQUET, TEXT, TableFile, kind_of, number_rows, open_table, read_batches, to_numpy

ID_NAMES = ("id", "node", "node_id", "nodeid", "vertex", "vertex_id", "original_id", "paper_id")
LABEL_NAMES = ("label", "y", "class", "labels", "target", "subject")
SPLIT_NAMES = ("split", "set", "fold")
ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("", "none", "-", "unlabeled", "unlabelled"), ""),
}
HINT = ", or say with --id-column or --label-column what it is"
MASK_NAMES = ("train_mask", "val_mask", "test_mask")
Masks = dict[str, Array]  # train, val, test -> boolean [N] or [S, N]


@dataclass(frozen=True)
class Labels:
    y: Array  # int64 [N] or int8 [N, C], -1 unknown
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class NodeFile:
    """Rows about vertices; row k is about ids[k], or about vertex k where the file has no ids."""

    path: Path
    num_rows: int
    ids: Array | None = None
    x: Array | None = None
    labels: Labels | None = None
    masks: Masks | None = None


def read_node_file(
    path: Path,
    what: str,  # "features", "labels" or "split": what an unnamed column or a bare array means
    id_column: str | None = None,
    label_columns: Sequence[str] = (),
    split_column: str | None = None,
    header: bool | None = None,
    num_nodes: int | None = None,  # of the graph, for splits given as lists of vertex numbers
) -> NodeFile:
    """A csv, parquet, npy or npz file; a table may hold features, labels and split in different columns."""
    kind = kind_of(path)
    if kind in (*TEXT, *PARQUET):
        return _from_table(path, what, id_column, label_columns, split_column, header)
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
) -> NodeFile:
    asked = [*label_columns, *(name for name in (id_column, split_column) if name is not None)]
    names = (*ID_NAMES, *LABEL_NAMES, *SPLIT_NAMES, *MASK_NAMES, *asked, "x", "features", "feat")
    table = open_table(path, names, header)
    ids = table.pick("id", id_column, ID_NAMES)
    split = table.pick("split", split_column, SPLIT_NAMES)
    masks = [name for name in MASK_NAMES if name in table.columns]
    for name in label_columns:
        table.pick("label", name, ())
    rest = [name for name in table.columns if name not in (ids, split, *masks)]
    labels = list(label_columns)
    if not labels and (found := table.pick("label", None, LABEL_NAMES)) is not None and found in rest:
        labels = [found]
    features = [name for name in rest if name not in labels]
    if what == "labels":
        labels, features = labels or features, []
        if not labels:
            raise UserError(f"{path} has no label column (it has {', '.join(table.columns)})")
    if what == "split":
        labels, features = [], []
        if split is None and not masks and len(rest) == 1:
            split = rest[0]
        if split is None and not masks:
            raise UserError(f"{path} has no column 'split' (it has {', '.join(table.columns)})")
    whole, x = _read(table, [name for name in (ids, split, *masks, *labels) if name], features)
    rows = x.shape[0] if x is not None else len(whole)
    if rows == 0:
        raise UserError(f"{path} has no rows: nothing to read")
    return NodeFile(
        path,
        rows,
        ids=None if ids is None else _ids(path, whole.column(ids)),
        x=x,
        labels=_labels(path, [whole.column(name) for name in labels], labels) if labels else None,
        masks=_masks(path, whole, split, masks),
    )


def _read(table: TableFile, plain: list[str], features: list[str]) -> tuple[pa.Table, Array | None]:
    """Plain columns as a table; feature columns as float32 rows, batch by batch so that no copy in float64 exists."""
    kept, rows = [], []
    done = 0
    for batch in read_batches(table, [*plain, *features]):
        kept.append(batch.select(plain))
        if features:
            rows.append(number_rows(table.path, batch.select(features), done, "vertex", HINT))
        done += batch.num_rows
    if not kept:
        return pa.table({name: pa.array([], pa.int64()) for name in plain}), None
    widths = {part.shape[1] for part in rows}
    if len(widths) > 1:
        raise UserError(f"{table.path} has rows of {sorted(widths)} features: give every vertex the same number")
    try:
        whole = pa.Table.from_batches(kept) if plain else pa.table({})
    except pa.ArrowInvalid as error:
        raise UserError(f"{table.path} changes its columns' types half-way ({error})") from None
    return whole, np.concatenate(rows) if rows else None


def _ids(path: Path, column: pa.ChunkedArray) -> Array:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise UserError(f"row {row} of {path} has no id: give every vertex one")
    return normal_ids(to_numpy(column), f"the ids of {path}")


def _labels(path: Path, columns: list[pa.ChunkedArray], names: list[str]) -> Labels:
    values = [to_numpy(column) for column in columns]
    if len(values) == 1 and values[0].dtype.kind == "U":
        classes, codes = np.unique(values[0], return_inverse=True)
        if classes.size and classes[0] == "":
            return Labels(codes.astype(np.int64) - 1, tuple(str(name) for name in classes[1:]))
        return Labels(codes.astype(np.int64), tuple(str(name) for name in classes))
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
    return _roles(path, to_numpy(table.column(split)))


def _roles(path: Path, values: Array) -> Masks:
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
    return NodeFile(path, array.shape[0], masks=_roles(path, array))


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
    return NodeFile(path, rows, ids, x, None if y is None else _array_labels(y), masks)


def _rows(*arrays: Array | None) -> int:
    return next((array.shape[0] for array in arrays if array is not None), 0)


def _array_labels(array: Array) -> Labels:
    if array.dtype.kind == "U" and array.ndim == 1:
        classes, codes = np.unique(array, return_inverse=True)
        return Labels(codes.astype(np.int64), tuple(str(name) for name in classes))
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
