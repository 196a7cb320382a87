"""Whole graphs in one `.npz` file: edges, features (dense or sparse), labels, splits."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from weft.errors import UserError, unknown
from weft.graph.build import from_edges
from weft.graph.files import Array
from weft.graph.graph import Graph

KEYS = (
    *("edge_index", "num_nodes", "y", "x", "x_data", "x_indices", "x_indptr", "x_shape"),
    *("train_mask", "val_mask", "test_mask", "meta", "weight", "original_ids", "class_names"),
    *("relation", "relation_names", "edge_features"),
)


def load_npz(path: str | Path, undirected: bool | None = None) -> Graph:
    """A graph from `edge_index` [2, E] and any of the other KEYS.

    With `undirected` None the file decides: its `meta` says "undirected" where each edge is stored once and
    has to be doubled.
    """
    path = Path(path)
    arrays = read_npz(path)
    if "edge_index" not in arrays:
        raise UserError(
            f"{path} has no array 'edge_index' (it has {', '.join(sorted(arrays)) or 'nothing'}): weft reads "
            "edges of shape [2, E] from it"
        )
    for name in arrays:
        if name not in KEYS:
            raise UserError(f"{path}: {unknown('array', name, KEYS)}")
    meta = _meta(path, arrays)
    if undirected is None:
        undirected = str(meta.get("edges", "")).startswith("undirected")

    def names(of: str) -> list[str] | None:
        return [str(name) for name in arrays[of]] if of in arrays else None

    try:
        return from_edges(
            arrays["edge_index"],
            num_nodes=int(arrays["num_nodes"]) if "num_nodes" in arrays else None,
            x=dense_features(arrays),
            y=arrays.get("y"),
            weight=arrays.get("weight"),
            train_mask=arrays.get("train_mask"),
            val_mask=arrays.get("val_mask"),
            test_mask=arrays.get("test_mask"),
            ids=arrays.get("original_ids"),
            class_names=names("class_names"),
            relation=arrays.get("relation"),
            relation_names=names("relation_names"),
            edge_features=arrays.get("edge_features"),
            undirected=undirected,
            name=path.stem,
            meta=meta,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the file; a UserError if it is missing, truncated, foreign or pickled."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise UserError(f"{path} holds a single array, not an npz archive")
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} cannot be read as npz ({error}): it is truncated, or no npz file of plain arrays"
        ) from None


def read_npz_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as npz ({error}): it is truncated, or no npz file") from None


def _meta(path: Path, arrays: Mapping[str, Array]) -> dict[str, Any]:
    if "meta" not in arrays:
        return {}
    try:
        meta = json.loads(str(arrays["meta"]))
    except ValueError as error:
        raise UserError(f"{path}: its 'meta' is no JSON text ({error})") from None
    return meta if isinstance(meta, dict) else {"meta": meta}


def dense_features(arrays: Mapping[str, Array]) -> Array | None:
    if "x" in arrays:
        return arrays["x"]
    parts = [arrays.get(f"x_{part}") for part in ("data", "indices", "indptr", "shape")]
    if all(part is None for part in parts):
        return None
    data, indices, indptr, shape = parts
    if data is None or indices is None or indptr is None or shape is None:
        raise UserError("sparse features need all of x_data, x_indices, x_indptr and x_shape")
    rows, columns = (int(size) for size in shape)
    if indptr.shape != (rows + 1,) or indptr[-1] != data.size or data.size != indices.size:
        raise UserError("the parts of the sparse features do not fit together: write them again")
    if indices.size and int(indices.max()) >= columns:
        raise UserError(f"the sparse features have column {int(indices.max())} of only {columns}")
    sparse = scipy.sparse.csr_matrix(
        (data.astype(np.float32), indices.astype(np.int32), indptr.astype(np.int64)), shape=(rows, columns)
    )
    return np.asarray(sparse.toarray(), dtype=np.float32)
