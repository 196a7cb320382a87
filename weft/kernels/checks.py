"""What the functions of weft.kernels check, so that backends may trust addresses and indices. Mistakes: ValueError.

Index bounds cost a pass over the edges, so what was found is kept for as long as the tensor lives.
"""

import weakref

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import kernel

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


class Findings:
    """A number for each of some tensors, which counts until the tensor is changed in place or is gone."""

    def __init__(self) -> None:
        # By id, since tensors compare element by element: a weak reference, the version that was checked, the number.
        self._entries: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensor: Tensor) -> int | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] != _version(tensor):
            return None
        return entry[2]

    def set(self, tensor: Tensor, number: int) -> None:
        name, entries = id(tensor), self._entries

        def forget(gone: "weakref.ref[Tensor]") -> None:
            entry = entries.get(name)
            if entry is not None and entry[0] is gone:  # and not that of a tensor which has this id now
                del entries[name]

        entries[name] = weakref.ref(tensor, forget), _version(tensor), number


_num_edges = Findings()  # of vectors that begin rows: they ascend from 0 to it
_largest = Findings()  # of index vectors without negative entries


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


def check_rows(name: str, tensor: Tensor) -> None:
    """A matrix of rows that a kernel reads."""
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be a matrix of rows, but its shape is {tuple(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32, float64 or bfloat16, but is {tensor.dtype}")


def check_state(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A tensor that a kernel writes into: right shape, right dtype, and contiguous."""
    check_shape(name, tensor, shape, dtype)
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is written in place, so it must be contiguous")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, but has {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, but is {tensor.dtype}")


def check_probability(p: float) -> None:
    require(0.0 <= p < 1.0, f"the dropout probability must be in [0, 1), but is {p}")


def check_indptr(indptr: Tensor, num_edges: int) -> None:
    if indptr.dim() != 1 or indptr.dtype != torch.int64 or indptr.numel() == 0:
        raise ValueError(f"indptr must be int64 [rows + 1], but is {indptr.dtype} with shape {tuple(indptr.shape)}")
    if not indptr.is_contiguous():
        raise ValueError("indptr must be contiguous")
    if _num_edges.get(indptr) != num_edges:
        if int(indptr[0]) != 0 or int(indptr[-1]) != num_edges:
            raise ValueError(
                f"indptr must run from 0 to the number of edges {num_edges}, "
                f"but runs from {int(indptr[0])} to {int(indptr[-1])}"
            )
        if not bool((indptr[1:] >= indptr[:-1]).all()):
            raise ValueError("indptr must not decrease from one row to the next")
        _num_edges.set(indptr, num_edges)


def check_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> None:
    """Rows that partition the edges, and column numbers in [0, num_cols)."""
    if indices.dim() != 1 or indices.dtype != torch.int32:
        raise ValueError(f"indices must be int32 [E], but is {indices.dtype} with shape {tuple(indices.shape)}")
    if not indices.is_contiguous():
        raise ValueError("indices must be contiguous")
    check_indptr(indptr, indices.numel())
    check_index("indices", indices, num_cols)


def check_index(name: str, index: Tensor, bound: int) -> None:
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} must be a vector of int32 or int64, but is {index.dtype} with shape {tuple(index.shape)}"
        )
    if index.numel() == 0:
        return
    largest = _largest.get(index)
    if largest is None:
        smallest, largest = kernel(reference.extremes, index)(index.contiguous())
        if smallest < 0:
            raise ValueError(f"{name} holds {smallest}, which is below 0")
        _largest.set(index, largest)
    if largest >= bound:
        raise ValueError(f"{name} holds {largest}, but there are only {bound} rows to point at")


def trust_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> None:
    """Spares a CSR that a kernel has just built the checks."""
    _num_edges.set(indptr, indices.numel())
    if indices.numel() and indices.is_contiguous():
        _largest.set(indices, max(num_cols - 1, 0))


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
