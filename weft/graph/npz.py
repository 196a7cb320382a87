"""Whole graphs in one `.npz` file: edges, features (dense or sparse), labels, splits."""

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.disk import open_file, parse_json
from weft.disk.space import refuse_beyond_memory, size
from weft.errors import UserError, unknown
from weft.graph.build import from_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.structure import check_offsets, check_range

LARGE_BYTES, MOST_RATIO = 256 << 20, 200  # deflate shrinks zeros by a factor of 1,000

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
            num_nodes=_number(arrays["num_nodes"]) if "num_nodes" in arrays else None,
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


def _number(array: Array) -> int:
    if array.size != 1 or array.dtype.kind not in "iu":
        raise UserError(f"num_nodes is {array.dtype} {list(array.shape)}: give one integer")
    return int(array.reshape(-1)[0])


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the file; a UserError if it is missing, truncated, foreign or pickled, or unpacks to too much."""
    with _archive(path) as file:
        _check_sizes(path, file)
        return {_array_name(member): _read_member(path, file, member) for member in file.infolist()}


def read_npz_names(path: Path) -> list[str]:
    with _archive(path) as file:
        return [_array_name(member) for member in file.infolist()]


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_file(path, "give the path of an npz file") as raw:
        try:
            with zipfile.ZipFile(raw) as file:
                yield file
        except UserError:
            raise
        except Exception as error:  # a damaged archive, or header of an array, fails in many ways
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(
                f"{path} cannot be read as npz ({reason}): it is truncated, or no npz file of plain arrays"
            ) from None


def _array_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _check_sizes(path: Path, file: zipfile.ZipFile) -> None:
    """Before anything is unpacked: what the archive says that it holds must fit, and be no bomb."""
    packed = sum(member.compress_size for member in file.infolist())
    unpacked = sum(member.file_size for member in file.infolist())
    if unpacked > LARGE_BYTES and unpacked > MOST_RATIO * max(1, min(packed, path.stat().st_size)):
        raise UserError(
            f"{path} unpacks to {size(unpacked)}, more than {MOST_RATIO} times its size, as hardly any data do: if "
            "they are right, save them again with numpy.savez, which does not compress"
        )
    refuse_beyond_memory(unpacked, f"{path}, unpacked,")


def _read_member(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array, whose own header must agree with the archive before room is made for it."""
    with file.open(member) as raw:
        version = np.lib.format.read_magic(raw)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(raw)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} is pickled")
        if raw.tell() + dtype.itemsize * math.prod(shape) != member.file_size:
            raise ValueError(
                f"{member.filename} says that it is {dtype} {list(shape)}, but has {member.file_size} bytes"
            )
    with file.open(member) as raw:
        array: Array = np.lib.format.read_array(raw, allow_pickle=False)
        return array


def _meta(path: Path, arrays: Mapping[str, Array]) -> dict[str, Any]:
    if "meta" not in arrays:
        return {}
    meta = parse_json(str(arrays["meta"]), f"{path}: its 'meta'", "write JSON text there")
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
    if shape.shape != (2,) or any(part.dtype.kind not in "iu" for part in (shape, indices, indptr)):
        raise UserError("x_shape holds two integers, and x_indices and x_indptr hold integers: write them again")
    if data.dtype.kind not in "biuf" or data.shape != indices.shape or data.ndim != 1:
        raise UserError("the parts of the sparse features do not fit together: write them again")
    rows, columns = (int(length) for length in shape)
    if rows < 0 or columns < 1:
        raise UserError(f"x_shape is [{rows}, {columns}], which is no shape of features: write it again")
    if indptr.dtype.kind == "u":
        indptr = indptr.astype(np.int64)
    check_offsets(torch.from_numpy(indptr).long(), rows, data.size, "the sparse features", "write them again")
    check_range(torch.from_numpy(indices.astype(np.int64)), 0, columns, "x_indices", "write the features again")
    refuse_beyond_memory(4 * rows * columns, f"features of {rows} x {columns} numbers")
    import scipy.sparse  # a tenth of a second, which workers do without

    sparse = scipy.sparse.csr_matrix(
        (data.astype(np.float32), indices.astype(np.int32), indptr.astype(np.int64)), shape=(rows, columns)
    )
    return np.asarray(sparse.toarray(), dtype=np.float32)
