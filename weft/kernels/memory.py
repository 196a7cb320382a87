"""A pool of memory blocks for large results.

The system clears every page before a process may see it, which for a matrix of a hundred megabytes takes longer than
most kernels that fill it. So a block goes back to the pool when the last tensor on it dies, and the next result of its
size reuses it, pages and all. Blocks ask for huge pages. A block that serves no request for a while is given back to
the system, and so are the oldest ones where results of ever new sizes would let idle blocks hold more than live ones
ever did.

How the pool works is its `Policy`, which `set_policy` changes inside a `scoped_policy` block. Blocks may lie in files
(`spill_folder`): the system then writes pages out when memory runs short and reads them again when they are touched, so
that results may be larger than memory.
"""

import ctypes
import math
import mmap
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.disk.space import reserve, writing

SMALLEST_BYTES = 1 << 20  # what is smaller comes from torch's own allocator
_GRAIN_BYTES = 1 << 21  # a huge page
_SLACK = 1.25  # a block serves requests down to its size divided by this
_M_MMAP_THRESHOLD, _HEAP_BYTES = -3, 1 << 17  # of glibc: its number in malloc.h, and its own first choice
_PATIENCE = 512  # requests after which a block that served none of them is given back


@dataclass(frozen=True)
class Policy:
    """How the pool gets and keeps its blocks."""

    spill_folder: Path | None = None  # where blocks lie in files; None: in memory
    low_memory: bool = False  # idle blocks are freed before new ones are made: fewer bytes held, more pages cleared


class _Pool:
    def __init__(self) -> None:
        self._idle: list[tuple[int, mmap.mmap]] = []  # (request at which it was put here, block), oldest first
        # (generation, block), put here by finalisers, which may run anywhere: appending is atomic.
        self._returned: deque[tuple[int, mmap.mmap]] = deque()
        self._requests = 0
        self._lock = threading.Lock()  # finalisers do not take it
        self._live: dict[int, int] = {}  # address and bytes of blocks that tensors lie on
        self._most_live = 0
        self._generation = 0  # blocks that were made before the last `clear` are not used again
        self.policy = Policy()

    def take(self, num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Bytes whose block comes back when the array, and every tensor on it, is gone."""
        with self._lock:
            self._requests += 1
            while self._returned:
                generation, returned = self._returned.popleft()
                if generation == self._generation:
                    self._idle.append((self._requests, returned))
            while self._idle and self._requests - self._idle[0][0] > _PATIENCE:
                self._idle.pop(0)
            block = self._best(num_bytes)
            live = sum(list(self._live.values())) + (num_bytes if block is None else len(block))
            self._most_live = max(self._most_live, live)
            if block is None:
                self._make_room(num_bytes if self.policy.low_memory else live + self.idle_bytes() - 2 * self._most_live)
        if block is None:
            block = _new_block(num_bytes, self.policy.spill_folder)
        array = np.frombuffer(block, dtype=np.uint8, count=num_bytes)
        self._live[array.ctypes.data] = len(block)
        weakref.finalize(array, self._give_back, self._generation, block, array.ctypes.data).atexit = False
        return array

    def _make_room(self, num_bytes: int) -> None:
        """Frees idle blocks, oldest first, until they came to this many bytes."""
        while self._idle and num_bytes > 0:
            num_bytes -= len(self._idle.pop(0)[1])

    def _give_back(self, generation: int, block: mmap.mmap, address: int) -> None:
        self._live.pop(address, None)
        self._returned.append((generation, block))

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._live

    def _best(self, num_bytes: int) -> mmap.mmap | None:
        """The smallest idle block that fits, and of equal ones that which was used last (it may be in cache)."""
        best: int | None = None
        for at, (_, block) in enumerate(self._idle):
            fits = num_bytes <= len(block) <= max(num_bytes * _SLACK, num_bytes + _GRAIN_BYTES)
            if fits and (best is None or len(block) <= len(self._idle[best][1])):
                best = at
        return None if best is None else self._idle.pop(best)[1]

    def idle_bytes(self) -> int:
        returned = (block for generation, block in list(self._returned) if generation == self._generation)
        return sum(len(block) for _, block in self._idle) + sum(map(len, returned))

    def clear(self) -> None:
        """Frees all idle blocks, and later those that tensors still lie on."""
        with self._lock:
            self._generation += 1
            self._idle.clear()
            self._returned.clear()
            self._most_live = 0


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


_scopes = 0  # `scoped_policy` blocks that have been entered


@contextmanager
def scoped_policy() -> Iterator[None]:
    """`set_policy` holds until the end of the block; then the policy of before is back, and no idle block is kept."""
    global _scopes
    before = _pool.policy
    _scopes += 1
    try:
        yield
    finally:
        _scopes -= 1
        _pool.clear()
        _pool.policy = before


def set_policy(policy: Policy) -> None:
    """Changes how the pool works, for the rest of the innermost `scoped_policy` block."""
    if not _scopes:
        raise RuntimeError("set_policy is for use inside `with scoped_policy()`, which puts the policy of before back")
    if policy.spill_folder != _pool.policy.spill_folder:
        _pool.clear()
    _pool.policy = policy
    if policy.low_memory:
        # The C library too is told to keep no large heap: by itself it raises this bound with every large tensor that
        # is freed, and what is below the bound stays in a heap that only grows. It cannot be told to do so again, so
        # that this is the one setting that outlives the scope.
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)


def spills() -> bool:
    """Whether large results lie in files."""
    return _pool.policy.spill_folder is not None


@contextmanager
def spilled_activations() -> Iterator[None]:
    """While results lie in files, what torch's own functions keep for the backward pass is moved there too."""

    def move(tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if size < SMALLEST_BYTES or tensor.device.type != "cpu" or tensor.is_leaf or _pool.holds(tensor):
            return tensor
        return empty_like(tensor).copy_(tensor)

    if not spills():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(move, _as_it_is):
        yield


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _new_block(num_bytes: int, folder: Path | None) -> mmap.mmap:
    size = -(-num_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
    if folder is not None:
        with writing(folder, size), tempfile.TemporaryFile(dir=folder) as file:  # no name: the last mapping ends it
            reserve(file.fileno(), size, folder)
            return mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    filled = num_bytes // _GRAIN_BYTES * _GRAIN_BYTES  # of a huge page that is touched, all of it is taken
    if hasattr(mmap, "MADV_HUGEPAGE") and filled:
        block.madvise(mmap.MADV_HUGEPAGE, 0, filled)
    return block
