"""Memory that is used again: large results come from blocks that earlier results have left.

The system clears every page before a process may see it, which for a matrix of a hundred megabytes takes longer than
most kernels that fill it. So a block goes back to a pool when the last tensor on it dies, and the next result of its
size takes it over, pages and all. Blocks ask for huge pages; those that nobody wants for a while are given back.
"""

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SMALLEST_BYTES = 1 << 20  # what is smaller comes from torch's own allocator
_GRAIN_BYTES = 1 << 21  # a huge page
_SLACK = 1.25  # a block serves requests down to its size divided by this
_PATIENCE = 512  # requests after which a block that served none of them is given back


class _Pool:
    def __init__(self) -> None:
        self._idle: list[tuple[int, mmap.mmap]] = []  # (request at which it was put here, block), oldest first
        self._returned: deque[mmap.mmap] = deque()  # by finalisers, which may run anywhere: appending is atomic
        self._requests = 0

    def take(self, num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Bytes whose block comes back when the array, and every tensor on it, is gone."""
        self._requests += 1
        while self._returned:
            self._idle.append((self._requests, self._returned.popleft()))
        while self._idle and self._requests - self._idle[0][0] > _PATIENCE:
            self._idle.pop(0)
        block = self._best(num_bytes) or _new_block(num_bytes)
        array = np.frombuffer(block, dtype=np.uint8, count=num_bytes)
        weakref.finalize(array, self._returned.append, block).atexit = False
        return array

    def _best(self, num_bytes: int) -> mmap.mmap | None:
        """The smallest idle block that fits, and of equal ones that which was used last (it may be in cache)."""
        best: int | None = None
        for at, (_, block) in enumerate(self._idle):
            fits = num_bytes <= len(block) <= max(num_bytes * _SLACK, num_bytes + _GRAIN_BYTES)
            if fits and (best is None or len(block) <= len(self._idle[best][1])):
                best = at
        return None if best is None else self._idle.pop(best)[1]

    def idle_bytes(self) -> int:
        return sum(len(block) for _, block in self._idle) + sum(len(block) for block in self._returned)

    def clear(self) -> None:
        self._idle.clear()
        self._returned.clear()


_pool = _Pool()


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An uninitialised tensor, of memory that is used again where it is large and on the CPU."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < SMALLEST_BYTES or (device is not None and device.type != "cpu"):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    storage = torch.from_numpy(_pool.take(num_bytes)).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape))  # type: ignore[call-overload, no-any-return]


def empty_like(tensor: Tensor) -> Tensor:
    return empty(tensor.shape, tensor.dtype, tensor.device)


def idle_bytes() -> int:
    """Bytes held for later results."""
    return _pool.idle_bytes()


def release() -> None:
    """Gives all idle blocks back to the system."""
    _pool.clear()


def _new_block(num_bytes: int) -> mmap.mmap:
    size = -(-num_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block
