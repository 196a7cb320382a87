"""What every kernel checks at its border, so that native code may trust its pointers. Mistakes: ValueError.

Index bounds cost a pass over the edges, so a tensor that passed is remembered (on the tensor, with its
version counter: changing it in place makes it be checked again).
"""

from typing import cast

import torch
from torch import Tensor

from weft.kernels.native import native_for, pointer, threads

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """bf16 rows are summed in float32; float32 and float64 in themselves."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


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


def check_indptr(indptr: Tensor, num_edges: int) -> None:
    if indptr.dim() != 1 or indptr.dtype != torch.int64 or indptr.numel() == 0:
        raise ValueError(f"indptr must be int64 [rows + 1], but is {indptr.dtype} with shape {tuple(indptr.shape)}")
    if not indptr.is_contiguous():
        raise ValueError("indptr must be contiguous")
    if _remembered(indptr) != num_edges:
        if int(indptr[0]) != 0 or int(indptr[-1]) != num_edges:
            raise ValueError(
                f"indptr must run from 0 to the number of edges {num_edges}, "
                f"but runs from {int(indptr[0])} to {int(indptr[-1])}"
            )
        if not bool((indptr[1:] >= indptr[:-1]).all()):
            raise ValueError("indptr must not decrease from one row to the next")
        _remember(indptr, num_edges)


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
    largest = _remembered(index)
    if largest is None:
        smallest, largest = _extremes(index)
        if smallest < 0:
            raise ValueError(f"{name} holds {smallest}, which is below 0")
        _remember(index, largest)
    if largest >= bound:
        raise ValueError(f"{name} holds {largest}, but there are only {bound} rows to point at")


def trust_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> None:
    """Remember a CSR that was just built by a kernel as checked."""
    _remember(indptr, indices.numel())
    if indices.numel() and indices.is_contiguous():
        _remember(indices, max(num_cols - 1, 0))


def _extremes(index: Tensor) -> tuple[int, int]:
    native = native_for(index)
    if native is None or not index.is_contiguous():
        smallest, largest = torch.aminmax(index)
        return int(smallest), int(largest)
    wide = index.dtype == torch.int64
    return cast(tuple[int, int], native.extremes(pointer(index), index.numel(), wide, threads()))


def _remembered(tensor: Tensor) -> int | None:
    entry = tensor.__dict__.get("_weft_checked")
    if entry is None or entry[0] != _version(tensor):
        return None
    return cast(int, entry[1])


def _remember(tensor: Tensor, value: int) -> None:
    tensor.__dict__["_weft_checked"] = (_version(tensor), value)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
