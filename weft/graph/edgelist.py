"""The edges of a file, as vertex numbers and the original ids that they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from weft.errors import UserError, unknown
from weft.graph.files import Array
from weft.graph.ids import IdMap, normal_ids
from weft.graph.npz import read_npz
from weft.graph.tables import PARQUET, TEXT, TableFile, kind_of, open_table, read_batches, to_numpy

SRC_NAMES = ("src", "source", "from", "u", "head", "src_id", "source_id", "sourcenodeid", "from_id", "node_1")
DST_NAMES = ("dst", "target", "to", "v", "tail", "dst_id", "dest", "destination", "target_id", "targetnodeid")
WEIGHT_NAMES = ("weight", "edge_weight", "w")
EDGE_FILES = (*TEXT, *PARQUET, ".npy", ".npz")


@dataclass(frozen=True)
class EdgeList:
    """Ends of E edges. With `names`, an end k stands for the id names[k]; without, for the integer id k."""

    src: Array  # int [E]
    dst: Array
    weight: Array | None
    names: Array | None  # distinct strings


def read_edges(
    path: Path,
    src: str | None = None,
    dst: str | None = None,
    weight: str | None = None,
    header: bool | None = None,
) -> EdgeList:
    """Edges from csv, tsv, txt, parquet, npy or npz; `src`, `dst`, `weight` name columns or arrays."""
    kind = kind_of(path)
    if kind in (*TEXT, *PARQUET):
        edges = _from_table(path, src, dst, weight, header)
    elif kind == ".npy":
        edges = _from_arrays(path, *_pair(path, read_npy(path)), None)
    elif kind == ".npz":
        edges = _from_npz(path, src, dst, weight)
    else:
        raise UserError(f"{path} is no edge list that weft reads: give one of {', '.join(EDGE_FILES)}")
    if edges.src.size == 0:
        raise UserError(f"{path} has no edges: nothing to train on")
    return edges


def read_npy(path: Path) -> Array:
    """An npy file, memory-mapped (copy on write)."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    try:
        return np.asanyarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as npy ({error}): it is truncated, or no plain array") from None


def number_vertices(edges: EdgeList, known: IdMap | None, path: Path) -> tuple[Array, Array, Array | None]:
    """Ends as vertices: of `known` ids, else of the ids that occur, ascending. Third: the new ids, None if 0..N-1."""
    if edges.names is not None:
        if known is None:
            order = np.argsort(edges.names)
            rank = np.empty(order.size, np.int64)
            rank[order] = np.arange(order.size)
            return rank[edges.src], rank[edges.dst], edges.names[order]
        vertex = known.find_or_minus_one(edges.names, "edge")
        src, dst = vertex[edges.src], vertex[edges.dst]
    elif known is None:
        return _number_integers(edges.src, edges.dst)
    else:
        src = known.find_or_minus_one(edges.src, "edge")
        dst = known.find_or_minus_one(edges.dst, "edge")
    assert known is not None
    lost = np.flatnonzero((src < 0) | (dst < 0))
    if lost.size:
        at = int(lost[0])
        end = edges.src[at] if src[at] < 0 else edges.dst[at]
        original = end if edges.names is None else edges.names[end]
        raise UserError(
            f"edge {at} of {path} points outside the graph: '{original}' is not among {known.where}; add that "
            "vertex or remove the edge"
        )
    return src, dst, None


def _number_integers(src: Array, dst: Array) -> tuple[Array, Array, Array | None]:
    low = int(min(src.min(initial=0), dst.min(initial=0)))
    high = int(max(src.max(initial=0), dst.max(initial=0)))
    if low >= 0 and high < 8 * src.size + 1024:  # a table over the range is small: no sort of all ends
        occurs = np.zeros(high + 1, np.bool_)
        occurs[src] = True
        occurs[dst] = True
        if occurs.all():
            return src, dst, None
        rank = np.cumsum(occurs, dtype=np.int64) - 1
        return rank[src], rank[dst], np.flatnonzero(occurs)
    ids = np.union1d(src, dst)
    return np.searchsorted(ids, src), np.searchsorted(ids, dst), ids


def _from_table(path: Path, src: str | None, dst: str | None, weight: str | None, header: bool | None) -> EdgeList:
    asked = [name for name in (src, dst, weight) if name is not None]
    table = open_table(path, (*SRC_NAMES, *DST_NAMES, *WEIGHT_NAMES, *asked), header)
    src_column = table.pick("source", src, SRC_NAMES, 0)
    dst_column = table.pick("destination", dst, DST_NAMES, 1)
    weight_column = table.pick("weight", weight, WEIGHT_NAMES)
    if src_column is None or dst_column is None or src_column == dst_column:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}: name the ends of an edge with "
            "--src-column and --dst-column"
        )
    columns = [src_column, dst_column] + ([] if weight_column is None else [weight_column])
    types = {} if weight_column is None else {weight_column: pa.float32()}
    try:
        return _collect(table, columns, {src_column: pa.int64(), dst_column: pa.int64(), **types})
    except UserError as error:
        text_columns = {src_column: pa.string(), dst_column: pa.string(), **types}
        if table.parquet or "conversion error to int64" not in str(error):
            raise
        return _collect(table, columns, text_columns)


def _collect(table: TableFile, columns: Sequence[str], types: dict[str, pa.DataType]) -> EdgeList:
    ends: tuple[list[pa.Array], list[pa.Array]] = ([], [])
    weights: list[Array] = []
    rows = 0
    for batch in read_batches(table, columns, types):
        for side in (0, 1):
            column = batch.column(side)
            if column.null_count:
                row = rows + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise UserError(f"row {row} of {table.path} has no '{columns[side]}': an edge needs both ends")
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column = column.cast(pa.string()).dictionary_encode()
            elif not (pa.types.is_integer(column.type) or pa.types.is_dictionary(column.type)):
                raise UserError(
                    f"column '{columns[side]}' of {table.path} holds {column.type}: ids are integers or text"
                )
            ends[side].append(column)
        if len(columns) > 2:
            weights.append(to_numpy(batch.column(2)).astype(np.float32))
        rows += batch.num_rows
    weight = np.concatenate(weights) if weights else None
    if rows == 0:
        return EdgeList(np.empty(0, np.int64), np.empty(0, np.int64), weight, None)
    kinds = {pa.types.is_dictionary(side[0].type) for side in ends}
    if kinds == {False}:
        src, dst = (np.concatenate([normal_ids(part.to_numpy(), "ids") for part in side]) for side in ends)
        return EdgeList(src, dst, weight, None)
    src, dst, names = _encode(*ends)
    if (names == "").any():
        row = int(np.flatnonzero((names[src] == "") | (names[dst] == ""))[0])
        raise UserError(f"row {row} of {table.path} has an empty id: an edge needs both ends")
    return EdgeList(src, dst, weight, names)


def _encode(src: list[pa.Array], dst: list[pa.Array]) -> tuple[Array, Array, Array]:
    """Text ids as numbers: one dictionary for both ends, so that only distinct ids are ever handled as text."""
    parts = [
        part.cast(pa.dictionary(pa.int32(), pa.string()))
        if pa.types.is_dictionary(part.type)
        else part.cast(pa.string()).dictionary_encode()
        for part in (*src, *dst)
    ]
    unified = pa.chunked_array(parts).unify_dictionaries()
    names = to_numpy(unified.chunk(0).dictionary)
    codes = [chunk.indices.to_numpy() for chunk in unified.chunks]
    return np.concatenate(codes[: len(src)]), np.concatenate(codes[len(src) :]), names


def _pair(path: Path, array: Array) -> tuple[Array, Array]:
    if array.ndim == 2 and array.shape[0] == 2:
        return array[0], array[1]
    if array.ndim == 2 and array.shape[1] == 2:
        return array[:, 0], array[:, 1]
    raise UserError(f"{path} has shape {list(array.shape)}: edges are [2, E] or [E, 2]")


def _from_npz(path: Path, src: str | None, dst: str | None, weight: str | None) -> EdgeList:
    arrays = read_npz(path)
    for asked in (src, dst, weight):
        if asked is not None and asked not in arrays:
            raise UserError(f"{path}: {unknown('array', asked, arrays)}")
    pairs = [(src, dst)] if src and dst else [("src", "dst"), ("row", "col"), ("source", "target")]
    weight_name = weight or next((name for name in WEIGHT_NAMES if name in arrays), None)
    weights = None if weight_name is None else arrays[weight_name]
    for first, second in pairs:
        if first in arrays and second in arrays:
            return _from_arrays(path, arrays[first], arrays[second], weights)
    for name in ("edge_index", "edges"):
        if name in arrays:
            return _from_arrays(path, *_pair(path, arrays[name]), weights)
    raise UserError(
        f"{path} has the arrays {', '.join(sorted(arrays))}: edges are expected as edge_index [2, E], or name "
        "two arrays with --src-column and --dst-column"
    )


def _from_arrays(path: Path, src: Array, dst: Array, weight: Array | None) -> EdgeList:
    if src.ndim != 1 or src.shape != dst.shape:
        raise UserError(f"{path}: the ends have shapes {list(src.shape)} and {list(dst.shape)}: give one length")
    if src.dtype.kind in "iu" and dst.dtype.kind in "iu":
        return EdgeList(normal_ids(src, str(path)), normal_ids(dst, str(path)), weight, None)
    if src.dtype.kind == "U" and dst.dtype.kind == "U":
        src, dst, names = _encode([pa.array(src)], [pa.array(dst)])
        return EdgeList(src, dst, weight, names)
    raise UserError(f"{path} holds {src.dtype}: vertex ids are integers or text")
