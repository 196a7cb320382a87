"""Columns of a table as numbers, days, or texts; whatever is missing is NaN, or code -1."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.graph.files import Array
from weft.graph.tables import is_list

Kind = Literal["numbers", "flags", "dates", "text", "categories", "vectors"]
MICROSECONDS_PER_DAY = 86_400e6


def kind_of_type(kind: pa.DataType) -> Kind | None:
    """What a column of this type holds; None: nothing that features are made of."""
    types = pa.types
    if types.is_boolean(kind):
        return "flags"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return "numbers"
    if types.is_time(kind) or types.is_duration(kind):
        return "numbers"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "dates"
    if is_text(kind):
        return "text"
    if types.is_dictionary(kind):
        return "categories" if is_text(kind.value_type) else kind_of_type(kind.value_type)
    if is_list(kind):
        inner = kind.value_type
        return "vectors" if types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner) else None
    return None


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def numbers_of(column: pa.Array) -> Array:
    """float64, NaN where a value is missing; ArrowInvalid where text is no number."""
    column = _plain(column)
    if is_text(column.type):
        column = _without_empty(column)
    elif pa.types.is_time(column.type) or pa.types.is_duration(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    numbers = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def days_of(column: pa.Array) -> Array:
    """float64 days since the beginning of 1970, NaN where a date is missing; ArrowInvalid where text is no date."""
    dates = dates_of(column)
    return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / MICROSECONDS_PER_DAY)


def dates_of(column: pa.Array) -> Array:
    """datetime64[us], NaT where a date is missing; ArrowInvalid where text is no date."""
    column = _plain(column)
    if is_text(column.type):
        column = _without_empty(column)
    if pa.types.is_null(column.type):
        return np.full(len(column), "NaT", "datetime64[us]")
    return np.asarray(column.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False))


def texts_of(column: pa.Array) -> tuple[Array, list[str]]:
    """Codes into distinct texts, -1 where there is none or an empty one. Numbers that are whole are written so."""
    column = _plain(column)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        values = numbers_of(column)
        whole = np.isnan(values) | (np.abs(values) < 2**53) & (values == np.floor(values))
        if whole.all():
            column = pa.array(np.nan_to_num(values).astype(np.int64), mask=np.isnan(values))
    text = column if is_text(column.type) else column.cast(pa.string())
    encoded = _without_empty(text.cast(pa.string())).dictionary_encode()
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(codes), encoded.dictionary.to_pylist()


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _without_empty(column: pa.Array) -> pa.Array:
    """The same texts, with none in the place of empty ones."""
    none: Any = pa.scalar(None, column.type)
    return pc.if_else(pc.equal(column, ""), none, column)
