"""The random bits of dropout: a function of (key, global id of the row, column), the same as in weft.kernels.

So a row is dropped out alike wherever it is computed. `splitmix64` is the finaliser of the SplitMix64 generator.
"""

from typing import Any

import numpy as np

_U = np.uint64
_GOLDEN = _U(0x9E3779B97F4A7C15)


def splitmix64(value: np.ndarray) -> Any:
    value = value + _GOLDEN
    value = (value ^ (value >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U(27))) * _U(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> _U(31))
    return mixed


def keep_rows(ids: np.ndarray, width: int, p: float, key: int) -> Any:
    """The entries that dropout keeps, bool [N, width]; weft.kernels.dropout_rows keeps the same ones."""
    row = splitmix64(ids.astype(np.int64).view(np.uint64) * _GOLDEN + _U(key & 0xFFFFFFFFFFFFFFFF))
    low, high = row.astype(np.uint32), (row >> _U(32)).astype(np.uint32)
    v = low[:, None] + np.arange(width, dtype=np.uint32) * np.uint32(0x9E3779B9)
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    v = (v ^ (v >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    v = v ^ (v >> np.uint32(16)) ^ high[:, None]
    keep: np.ndarray = v >= np.uint32(int(p * 2**32))
    return keep
