"""The second pass over a table, and any pass over a new one: rows as a preparation says, whatever values they hold."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from weft.errors import UserError
from weft.graph.files import Array, map_npy
from weft.graph.preparation.fit import logarithm
from weft.graph.preparation.schema import Decision, Preparation
from weft.graph.preparation.values import days_of, kind_of_type, numbers_of, texts_of
from weft.graph.tables import PARQUET, TEXT, TableFile, feature_batches, kind_of, list_rows, open_table

PREPARED_BYTES = 1 << 24  # of the rows that are made at one time


def prepared_batches(preparation: Preparation, table: TableFile) -> Iterator[Array]:
    """The features of a table, float32 [rows, F], batch by batch in the order of its rows."""
    missing = [name for name in preparation.columns if name not in table.columns]
    if missing:
        raise UserError(
            f"{table.path} has no column '{missing[0]}', of which features were made in {preparation.source} (it has "
            f"{', '.join(table.columns)}): add it"
        )
    used = [decision for decision in preparation.decisions if decision.num_features]
    texts = [decision.column for decision in used if decision.holds == "categories"]
    first, step = 0, max(1, PREPARED_BYTES // max(1, 4 * preparation.num_features))  # categories become many columns
    for batch in feature_batches(table, preparation.columns, texts):
        for begin in range(0, batch.num_rows, step):
            yield prepare_batch(preparation, batch.slice(begin, step), table.path, first + begin)
        first += batch.num_rows


def prepare_batch(preparation: Preparation, batch: pa.RecordBatch, path: Path, first_row: int = 0) -> Array:
    """float32 [rows, F]. batch: has the preparation's columns. first_row: its place in the file, for messages."""
    rows = np.zeros((batch.num_rows, preparation.num_features), np.float32)
    at = 0
    for decision in preparation.decisions:
        if decision.num_features:
            into = rows[:, at : at + decision.num_features]
            _prepare_column(decision, batch.column(decision.column), into, path, first_row)
            at += decision.num_features
    return rows


def prepared_features(preparation: Preparation, path: Path, header: bool | None = None) -> Array:
    """The features of a whole file, [N, F]: of a table as float32, of an npy file as it has them."""
    if kind_of(path) in (*TEXT, *PARQUET):
        batches = list(prepared_batches(preparation, open_table(path, preparation.columns, header)))
        return np.concatenate([np.zeros((0, preparation.num_features), np.float32), *batches])
    return prepare_array(preparation, map_npy(path, "give a table, or an npy file of one plain array"), path)


def prepare_array(preparation: Preparation, x: Array, path: Path) -> Array:
    """An array of features of new vertices, which stays as it is and must have the columns of the first one."""
    if x.ndim != 2 or x.shape[1] != preparation.num_features:
        raise UserError(f"{path} has shape {list(x.shape)}: give {preparation.num_features} features for each vertex")
    return x


def _prepare_column(decision: Decision, column: pa.Array, into: Array, path: Path, first_row: int) -> None:
    """into: float32 [rows, columns of the decision], zeros."""
    if decision.holds == "vectors":
        into[:] = list_rows(path, column, first_row, "vertex", decision.size)
        _check_finite(into, np.ones(len(into), np.bool_), decision, path, first_row)
        return
    if decision.holds == "categories":
        codes, texts = texts_of(column)
        missing = codes < 0
        if decision.size:
            _prepare_categories(decision, codes, texts, into)
    else:
        values = _values(decision, column, path, first_row)
        missing = np.isnan(values)
        if decision.size:
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
                into[:, 0] = _scaled(decision, values)
            known = ~missing if decision.becomes != "unchanged" else np.ones(len(into), np.bool_)
            _check_finite(into[:, :1], known, decision, path, first_row)
            into[missing, 0] = 0.0
    if decision.indicator:
        into[:, -1] = missing


def _values(decision: Decision, column: pa.Array, path: Path, first_row: int) -> Array:
    """float64, NaN where a value is missing."""
    kind = kind_of_type(column.type)
    convert = days_of if decision.holds == "dates" else numbers_of
    fits = kind in ("dates", "text") if decision.holds == "dates" else kind in ("numbers", "flags", "text")
    if not fits and not pa.types.is_null(column.type):
        raise UserError(
            f"column '{decision.column}' of {path} holds {column.type}, but {decision.holds} were expected: write it "
            "as in the table that the graph was made of"
        )
    try:
        return convert(column)
    except pa.ArrowInvalid:
        row = next(row for row in range(len(column)) if not _converts(decision, column.slice(row, 1)))
        raise UserError(
            f"row {first_row + row} of {path} has '{column[row]}' in column '{decision.column}', which holds "
            f"{decision.holds}: mend it, or leave the field empty"
        ) from None


def _converts(decision: Decision, column: pa.Array) -> bool:
    try:
        (days_of if decision.holds == "dates" else numbers_of)(column)
    except pa.ArrowInvalid:
        return False
    return True


def _scaled(decision: Decision, values: Array) -> Array:
    if decision.becomes in ("standardised", "logarithm"):
        assert decision.mean is not None and decision.spread
        scaled = logarithm(values) if decision.becomes == "logarithm" else values
        return (scaled - decision.mean) / decision.spread
    return values


def _prepare_categories(decision: Decision, codes: Array, texts: Sequence[str], into: Array) -> None:
    """A one in the column of each row's value, none for values that training vertices do not have; or its number."""
    if decision.becomes == "learned":
        number = {value: index for index, value in enumerate(decision.categories, 1)}
        into[:, 0] = np.array([number.get(text, 0) for text in texts] + [0], np.float32)[codes]
        return
    if decision.becomes == "one-hot":
        place = {value: index for index, value in enumerate(decision.categories)}
        columns = np.array([place.get(text, -1) for text in texts] + [-1], np.int64)[codes]
    else:
        columns = np.array([bucket_of(text, decision.size) for text in texts] + [-1], np.int64)[codes]
    rows = np.flatnonzero(columns >= 0)
    into[rows, columns[rows]] = 1.0


@lru_cache(maxsize=1 << 16)
def bucket_of(text: str, buckets: int) -> int:
    """The column that a value of a large category shares, the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def _check_finite(rows: Array, known: Array, decision: Decision, path: Path, first_row: int) -> None:
    """known: bool [rows] where a value that is no number is a mistake."""
    wrong = np.flatnonzero(known & ~np.isfinite(rows).all(1))
    if wrong.size:
        raise UserError(
            f"features have NaN or infinite values, first in row {first_row + int(wrong[0])} of {path}, column "
            f"'{decision.column}': replace them before training"
        )
