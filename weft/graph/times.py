"""The times of edges and vertices: float64, numbers as they are, dates as seconds since the beginning of 1970.

Columns of dates stay dates (datetime64) until they are a graph's, so that a graph knows which of its times are dates.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.convert import ArrayLike, as_array
from weft.graph.files import Array
from weft.graph.preparation.values import dates_of, kind_of_type, numbers_of

Moment = float | str | date | np.datetime64  # a time as a user gives it
EXACT = 2.0**53  # whole numbers beyond it are not all float64 numbers


def times_of_column(column: pa.Array | pa.ChunkedArray, what: str) -> Array:
    """float64, or datetime64 of dates; NaN or NaT where a time is missing. `what` names the column in errors."""
    parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return np.concatenate([_times_of(part, what) for part in parts]) if parts else np.empty(0)


def _times_of(column: pa.Array, what: str) -> Array:
    kind = kind_of_type(column.type)
    try:
        if kind == "numbers":
            return _exact(numbers_of(column), what)
        if kind in ("dates", "text"):
            return dates_of(column)
    except pa.ArrowInvalid:
        pass
    raise UserError(f"{what} holds {column.type} where times are wanted: give numbers, or dates as 2024-05-31 12:30:00")


def to_times(values: ArrayLike, count: int, what: str) -> Tensor:
    """float64 [count] of numbers, or of numpy's datetime64."""
    array = as_array(values)
    if array.shape not in ((count,), (count, 1)):
        raise UserError(f"{what} have shape {list(array.shape)} for {count}: give one each")
    array = array.reshape(-1)
    if are_dates(array):
        missing = np.isnat(array)
        seconds = array.astype("datetime64[us]").astype(np.int64) / 1e6
        return torch.from_numpy(np.where(missing, np.nan, seconds))
    if array.dtype.kind not in "biuf":
        raise UserError(f"{what} are {array.dtype}: give numbers or dates")
    return torch.from_numpy(_exact(array.astype(np.float64), what))


def are_dates(values: ArrayLike | None) -> bool:
    """Whether times are given as dates."""
    return values is not None and as_array(values).dtype.kind == "M"


def say_which_are_dates(meta: Mapping[str, Any], **times: ArrayLike | None) -> dict[str, Any]:
    """A graph's meta with the names of those times (of `edges`, of `vertices`) that are dates."""
    dates = [name for name, values in times.items() if are_dates(values)]
    return {**meta, "dates": dates} if dates else dict(meta)


def time_of(moment: Moment, what: str) -> float:
    """One time: a number, or a date as 2024-05-31 or 2024-05-31 12:30:00, which becomes seconds since 1970."""
    if isinstance(moment, str):
        moment = moment.strip()
        try:
            time = float(moment)
        except ValueError:
            time = float(to_times(times_of_column(pa.array([moment]), what), 1, what))
    elif isinstance(moment, date | np.datetime64):
        time = float(to_times(np.array([moment], "datetime64[us]"), 1, what))
    else:
        time = float(moment)
    if not np.isfinite(time):
        raise UserError(f"{what} is {moment}: give a number, or a date as 2024-05-31 12:30:00")
    return time


def text_of(time: float, is_date: bool) -> str:
    """A time as people write it."""
    if not is_date:
        return f"{time:,.15g}"
    moment = np.datetime64(round(time * 1e6), "us")
    unit = next(unit for unit in ("D", "s", "us") if moment.astype(f"datetime64[{unit}]") == moment)
    return str(moment.astype(f"datetime64[{unit}]")).replace("T", " ")


def _exact(times: Array, what: str) -> Array:
    """Refuses numbers so large that two different ones may become one."""
    if times.size and bool((np.abs(times) > EXACT).any()):
        largest = float(np.nanmax(np.abs(times)))
        raise UserError(
            f"{what} reach {largest:.0f}, beyond 2^53, where neighbouring numbers become one: give coarser times, such "
            "as seconds or microseconds, or count from a later beginning"
        )
    return times
