"""Hashes from which every draw is made: of where and when it happens, so that no generator's state is needed.

`splitmix64` is the finaliser of the SplitMix64 generator; src/hash.h and weft_function/rng.py compute the same.
Tensors of int64 hold unsigned 64-bit numbers here: products and sums wrap, and only shifts need care.
"""

import torch
from torch import Tensor

MASK64 = (1 << 64) - 1
MASK32 = (1 << 32) - 1
GOLDEN = 0x9E3779B97F4A7C15  # what SplitMix64 adds; also what ids of rows are multiplied by before they are hashed
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def signed(value: int) -> int:
    """An unsigned 64-bit number as the int64 with the same bits."""
    value &= MASK64
    return value - (1 << 64) if value >= 1 << 63 else value


def shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 seen as uint64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(value: Tensor) -> Tensor:
    """The hash of every element, int64 seen as uint64."""
    value = value + signed(GOLDEN)
    value = (value ^ shift_right(value, 30)) * signed(_FIRST)
    value = (value ^ shift_right(value, 27)) * signed(_SECOND)
    return value ^ shift_right(value, 31)


def splitmix64_int(value: int) -> int:
    """The hash of one unsigned 64-bit number."""
    value = (value + GOLDEN) & MASK64
    value = ((value ^ (value >> 30)) * _FIRST) & MASK64
    value = ((value ^ (value >> 27)) * _SECOND) & MASK64
    return value ^ (value >> 31)


def hash_key(*parts: int) -> int:
    """A signed 64-bit key from any integers, order included."""
    value = 0
    for part in parts:
        value = splitmix64_int(value ^ (part & MASK64))
    return signed(value)


def hash_uniform(global_ids: Tensor, columns: int, key: int) -> Tensor:
    """Uniform numbers in [0, 1) keyed by (key, global id, column), float32 [N, columns]."""
    rows = splitmix64(global_ids ^ key)
    bits = splitmix64(rows[:, None] ^ splitmix64(torch.arange(columns, device=global_ids.device)))
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)
