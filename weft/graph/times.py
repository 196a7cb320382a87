"""The times of edges and vertices: float64, numbers as they are, dates as seconds since the beginning of 1970."""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.convert import ArrayLike, as_array
from weft.graph.files import Array
from weft.graph.preparation.values import days_of, kind_of_type, numbers_of

SECONDS_PER_DAY = 86_400.0
EXACT = 2.0**53  # whole numbers beyond it are not all float64 numbers


def times_of_column(column: pa.Array | pa.ChunkedArray, what: str) -> Array:
    """float64, NaN where a time is missing; `what` names the column in errors."""
    parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return np.concatenate([_times_of(part, what) for part in parts]) if parts else np.empty(0)


def _times_of(column: pa.Array, what: str) -> Array:
    kind = kind_of_type(column.type)
    try:
        if kind == "numbers":
            return _exact(numbers_of(column), what)
        if kind in ("dates", "text"):
            return np.round(days_of(column) * SECONDS_PER_DAY, 6)  # microseconds, which is what dates are read in
    except pa.ArrowInvalid:
        pass
    raise UserError(f"{what} holds {column.type} where times are wanted: give numbers, or dates as 2024-05-31 12:30:00")


def to_times(values: ArrayLike, count: int, what: str) -> Tensor:
    """float64 [count] of numbers, or of numpy's datetime64."""
    array = as_array(values)
    if array.shape not in ((count,), (count, 1)):
        raise UserError(f"{what} have shape {list(array.shape)} for {count}: give one each")
    array = array.reshape(-1)
    if array.dtype.kind == "M":
        missing = np.isnat(array)
        seconds = array.astype("datetime64[us]").astype(np.int64) / 1e6
        return torch.from_numpy(np.where(missing, np.nan, seconds))
    if array.dtype.kind not in "biuf":
        raise UserError(f"{what} are {array.dtype}: give numbers or dates")
    return torch.from_numpy(_exact(array.astype(np.float64), what))


def _exact(times: Array, what: str) -> Array:
    """Refuses numbers so large that two different ones may become one."""
    if times.size and bool((np.abs(times) > EXACT).any()):
        largest = float(np.nanmax(np.abs(times)))
        raise UserError(
            f"{what} reach {largest:.0f}, beyond 2^53, where neighbouring numbers become one: give coarser times, such "
            "as seconds or microseconds, or count from a later beginning"
        )
    return times
