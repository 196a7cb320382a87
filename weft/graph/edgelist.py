"""The edges of a file, as vertex numbers and the original ids that they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weft.errors import UserError, unknown
from weft.graph.files import Array, map_npy
from weft.graph.ids import IdMap, as_integers, normal_ids
from weft.graph.npz import read_npz
from weft.graph.relations import number_names
from weft.graph.tables import (
    PARQUET,
    TEXT,
    TableFile,
    has_leading_zeros,
    kind_of,
    number_rows,
    open_table,
    read_batches,
    to_numpy,
)
from weft.graph.times import times_of_column

SRC_NAMES = ("src", "source", "from", "u", "head", "src_id", "source_id", "sourcenodeid", "from_id", "node_1")
DST_NAMES = ("dst", "target", "to", "v", "tail", "dst_id", "dest", "destination", "target_id", "targetnodeid")
WEIGHT_NAMES = ("weight", "edge_weight", "w")
RELATION_NAMES = ("relation", "rel", "edge_type", "predicate")
TIME_NAMES = ("edge_time",)
FEATURE_NAMES = ("edge_features", "edge_attr")  # arrays of an npz file
EDGE_FILES = (*TEXT, *PARQUET, ".npy", ".npz")


@dataclass(frozen=True)
class EdgeList:
    """Ends of E edges. With `names`, an end k stands for the id names[k]; without, for the integer id k."""

    src: Array  # int [E]
    dst: Array
    weight: Array | None
    names: Array | None  # distinct strings
    relation: Array | None = None  # int [E]
    relation_names: tuple[str, ...] | None = None
    features: Array | None = None  # [E, F]
    time: Array | None = None  # [E], numbers or dates


class EdgeColumns(NamedTuple):
    """Where an edge list keeps what: columns of a table, arrays of an npz file; beside an npy file, npy files."""

    src: str | None = None
    dst: str | None = None
    weight: str | None = None
    relation: str | None = None
    features: tuple[str, ...] = ()
    time: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (*self[:4], *self.features, self.time) if name is not None]


def read_edges(path: Path, asked: EdgeColumns = EdgeColumns(), header: bool | None = None) -> EdgeList:
    """Edges from csv, tsv, txt, parquet, npy or npz; columns that are not asked for are found by their names."""
    kind = kind_of(path)
    if kind in (*TEXT, *PARQUET):
        edges = _from_table(path, asked, header)
    elif kind == ".npy":
        edges = _from_npy(path, asked)
    elif kind == ".npz":
        edges = _from_npz(path, asked)
    else:
        raise UserError(f"{path} is no edge list that weft reads: give one of {', '.join(EDGE_FILES)}")
    if edges.src.size == 0:
        raise UserError(f"{path} has no edges: nothing to train on")
    return edges


def read_npy(path: Path) -> Array:
    """An npy file, memory-mapped (copy on write)."""
    array = map_npy(path, "give an npy file of one plain array")
    if array.dtype.hasobject:
        raise UserError(f"{path} holds objects: give an npy file of one plain array")
    return array


def number_vertices(edges: EdgeList, known: IdMap | None, path: Path) -> tuple[Array, Array, Array | None]:
    """Ends as vertices: of `known` ids, else of the ids that occur, ascending. Third: the new ids, None if 0..N-1."""
    if edges.names is not None:
        if known is None:
            order = np.argsort(edges.names)
            alike = np.flatnonzero(edges.names[order][1:] == edges.names[order][:-1])
            if alike.size:  # as numpy compares text: without zeros (NUL) at its end
                raise UserError(f"two ids of {path} are both '{edges.names[order[alike[0]]]}': write them differently")
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


def _from_table(path: Path, asked: EdgeColumns, header: bool | None) -> EdgeList:
    known = (*SRC_NAMES, *DST_NAMES, *WEIGHT_NAMES, *RELATION_NAMES, *TIME_NAMES)
    table = open_table(path, (*known, *asked.names), header)
    src_column = table.pick("source", asked.src, SRC_NAMES, 0)
    dst_column = table.pick("destination", asked.dst, DST_NAMES, 1)
    if src_column is None or dst_column is None or src_column == dst_column:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}: name the ends of an edge with "
            "--src-column and --dst-column"
        )

    def unless_taken(role: str, wanted: str | None, known: Sequence[str]) -> str | None:
        column = table.pick(role, wanted, known)
        return None if wanted is None and column in asked.names else column

    found = EdgeColumns(
        src_column,
        dst_column,
        unless_taken("weight", asked.weight, WEIGHT_NAMES),
        unless_taken("relation", asked.relation, RELATION_NAMES),
        tuple(name for name in asked.features if table.pick("edge features", name, ())),
        unless_taken("time", asked.time, TIME_NAMES),
    )
    if len(set(found.names)) < len(found.names):
        raise UserError(f"{path}: one column is asked for as two things ({', '.join(found.names)}): name each once")
    types = {name: pa.float32() for name in (found.weight, *found.features) if name is not None}
    if found.relation is not None:
        types[found.relation] = pa.string()  # numbers or not is seen when all are known
    text_columns = {src_column: pa.string(), dst_column: pa.string(), **types}
    if has_leading_zeros(table):
        return _with_integers(_collect(table, found, text_columns))
    try:
        return _collect(table, found, {src_column: pa.int64(), dst_column: pa.int64(), **types})
    except UserError as error:
        if table.parquet or "conversion error to int64" not in str(error):
            raise
        return _collect(table, found, text_columns)


def _with_integers(edges: EdgeList) -> EdgeList:
    """Ids that were read as text as integers, where no two of them become one by that."""
    numbers = None if edges.names is None else as_integers(edges.names)
    if numbers is None:
        return edges
    return replace(edges, src=numbers[edges.src], dst=numbers[edges.dst], names=None)


def _collect(table: TableFile, found: EdgeColumns, types: dict[str, pa.DataType]) -> EdgeList:
    ends: tuple[list[pa.Array], list[pa.Array]] = ([], [])
    weights: list[Array] = []
    relations: list[pa.Array] = []
    features: list[Array] = []
    times: list[Array] = []
    rows = 0
    for batch in read_batches(table, found.names, types):
        for name, into in zip((found.src, found.dst), ends, strict=True):
            into.append(_identifiers(table.path, batch, str(name), rows, "an edge needs both ends"))
        if found.weight is not None:
            weights.append(to_numpy(batch.column(found.weight)).astype(np.float32))
        if found.relation is not None:
            relations.append(_identifiers(table.path, batch, found.relation, rows, "give every edge one"))
        if found.features:
            features.append(number_rows(table.path, batch.select(list(found.features)), rows, "edge"))
        if found.time is not None:
            times.append(_times(table.path, batch, found.time, rows))
        rows += batch.num_rows
    weight = np.concatenate(weights) if weights else None
    if rows == 0:
        return EdgeList(np.empty(0, np.int64), np.empty(0, np.int64), weight, None)
    relation = relation_names = None
    if relations:
        (codes,), texts = _encode(relations)
        if (texts == "").any():
            row = int(np.flatnonzero(texts[codes] == "")[0])
            raise UserError(f"row {row} of {table.path} has an empty '{found.relation}': give every edge one")
        relation, relation_names = number_names(codes, texts.tolist(), table.path)
    edges = EdgeList(
        *(np.empty(0, np.int64), np.empty(0, np.int64), weight, None, relation, relation_names),
        np.concatenate(features) if features else None,
        np.concatenate(times) if times else None,
    )
    kinds = {pa.types.is_dictionary(side[0].type) for side in ends}
    if kinds == {False}:
        src, dst = (np.concatenate([normal_ids(part.to_numpy(), "ids") for part in side]) for side in ends)
        return replace(edges, src=src, dst=dst)
    (src, dst), names = _encode(*ends)
    if (names == "").any():
        row = int(np.flatnonzero((names[src] == "") | (names[dst] == ""))[0])
        raise UserError(f"row {row} of {table.path} has an empty id: an edge needs both ends")
    return replace(edges, src=src, dst=dst, names=names)


def _times(path: Path, batch: pa.RecordBatch, name: str, first_row: int) -> Array:
    times = times_of_column(batch.column(name), f"column '{name}' of {path}")
    missing = np.flatnonzero(~np.isfinite(times))  # dates that are missing are not finite either
    if missing.size:
        raise UserError(f"row {first_row + int(missing[0])} of {path} has no '{name}': give every edge a time")
    return times


def _identifiers(path: Path, batch: pa.RecordBatch, name: str, first_row: int, rule: str) -> pa.Array:
    """A column of integers, or of text as a dictionary."""
    column = batch.column(name)
    if column.null_count:
        row = first_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"row {row} of {path} has no '{name}': {rule}")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string()).dictionary_encode()
    if not (pa.types.is_integer(column.type) or pa.types.is_dictionary(column.type)):
        raise UserError(f"column '{name}' of {path} holds {column.type}: it must hold integers or text")
    return column


def _encode(*columns: list[pa.Array]) -> tuple[list[Array], Array]:
    """Text as numbers: one dictionary for all columns, so that only distinct texts are ever handled as text."""
    parts = [
        part.cast(pa.dictionary(pa.int32(), pa.string()))
        if pa.types.is_dictionary(part.type)
        else part.cast(pa.string()).dictionary_encode()
        for column in columns
        for part in column
    ]
    unified = pa.chunked_array(parts).unify_dictionaries()
    names = to_numpy(unified.chunk(0).dictionary)
    codes = iter(chunk.indices.to_numpy() for chunk in unified.chunks)
    return [np.concatenate(list(islice(codes, len(column)))) for column in columns], names


def _pair(path: Path, array: Array) -> tuple[Array, Array]:
    if array.ndim == 2 and array.shape[0] == 2:
        return array[0], array[1]
    if array.ndim == 2 and array.shape[1] == 2:
        return array[:, 0], array[:, 1]
    raise UserError(f"{path} has shape {list(array.shape)}: edges are [2, E] or [E, 2]")


def _from_npy(path: Path, asked: EdgeColumns) -> EdgeList:
    if asked.src is not None or asked.dst is not None:
        raise UserError(f"{path} holds both ends of every edge: leave --src-column and --dst-column out")
    edges = _from_arrays(
        path, *_pair(path, read_npy(path)), None if asked.weight is None else read_npy(Path(asked.weight))
    )
    relation = None if asked.relation is None else read_npy(Path(asked.relation))
    edges = _with_arrays(path, edges, relation, [read_npy(Path(name)) for name in asked.features])
    return edges if asked.time is None else replace(edges, time=read_npy(Path(asked.time)))


def _from_npz(path: Path, asked: EdgeColumns) -> EdgeList:
    arrays = read_npz(path)
    for name in asked.names:
        if name not in arrays:
            raise UserError(f"{path}: {unknown('array', name, arrays)}")

    def named(wanted: str | None, known: Sequence[str]) -> Array | None:
        return next((arrays[name] for name in ([wanted] if wanted else known) if name in arrays), None)

    pairs = [("src", "dst"), ("row", "col"), ("source", "target")]
    if asked.src and asked.dst:
        pairs = [(asked.src, asked.dst)]
    weight = named(asked.weight, WEIGHT_NAMES)
    ends = next(((arrays[a], arrays[b]) for a, b in pairs if a in arrays and b in arrays), None)
    together = named(None, ("edge_index", "edges"))
    if ends is None and together is None:
        raise UserError(
            f"{path} has the arrays {', '.join(sorted(arrays))}: edges are expected as edge_index [2, E], or name "
            "two arrays with --src-column and --dst-column"
        )
    edges = _from_arrays(path, *(ends or _pair(path, together)), weight)  # type: ignore[arg-type]
    features = [arrays[name] for name in asked.features or FEATURE_NAMES if name in arrays]
    edges = _with_arrays(path, edges, named(asked.relation, RELATION_NAMES), features)
    return replace(edges, time=named(asked.time, TIME_NAMES))


def _with_arrays(path: Path, edges: EdgeList, relation: Array | None, features: Sequence[Array]) -> EdgeList:
    """The edges with what further arrays say of them, row by row; wrong lengths are for `from_edges` to refuse."""
    if relation is not None:
        if relation.ndim != 1 or relation.dtype.kind not in "iuU":
            raise UserError(
                f"the relations of {path} are {relation.dtype} {list(relation.shape)}: give an integer or a text per "
                "edge"
            )
        texts, codes = np.unique(relation, return_inverse=True)
        relation, names = number_names(codes, [str(text) for text in texts], path)
        edges = replace(edges, relation=relation, relation_names=names)
    if not features:
        return edges
    columns = [array[:, None] if array.ndim == 1 else array for array in features]
    if any(column.ndim != 2 or column.shape[0] != edges.src.size for column in columns):
        shapes = ", ".join(str(list(array.shape)) for array in features)
        raise UserError(
            f"the edge features of {path} have shape {shapes} for {edges.src.size} edges: give one row per edge"
        )
    return replace(edges, features=columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1))


def _from_arrays(path: Path, src: Array, dst: Array, weight: Array | None) -> EdgeList:
    if src.ndim != 1 or src.shape != dst.shape:
        raise UserError(f"{path}: the ends have shapes {list(src.shape)} and {list(dst.shape)}: give one length")
    if src.dtype.kind in "iu" and dst.dtype.kind in "iu":
        return EdgeList(normal_ids(src, str(path)), normal_ids(dst, str(path)), weight, None)
    if src.dtype.kind == "U" and dst.dtype.kind == "U":
        (src, dst), names = _encode([pa.array(src)], [pa.array(dst)])
        return EdgeList(src, dst, weight, names)
    raise UserError(f"{path} holds {src.dtype}: vertex ids are integers or text")
