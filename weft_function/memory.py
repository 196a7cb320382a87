"""Aligned memory: the bits of a product can depend on the address of its operands.

Libraries choose a kernel by the address of what they read: numpy multiplies rows without BLAS if their address is not a
multiple of their item size. Bytes that were received from a socket can start at any address. Therefore every operand of
a product is aligned to 64 bytes, in a function as in a graph server's own process.
"""

import numpy as np

ALIGNMENT = 64


def padding(size: int) -> int:
    """How many bytes are missing to the next multiple of ALIGNMENT."""
    return -size % ALIGNMENT


def empty(size: int) -> np.ndarray:
    """An uninitialised, aligned buffer of `size` bytes."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = padding(_address(raw))
    return raw[start : start + size]


def aligned(array: np.ndarray) -> np.ndarray:
    """The same values, contiguous and aligned: the array itself if it is so already, otherwise a copy.

    Strides are those of a contiguous array also along axes of length 1, where numpy allows any stride.
    """
    if not array.flags.c_contiguous or _address(array) % ALIGNMENT:
        copy = empty(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy
    return array.reshape(-1).reshape(array.shape)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
