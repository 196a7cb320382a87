"""Arrays that a user gives, as tensors of the types that a graph has; what cannot be converted is refused."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.check import check_edge_features
from weft.graph.files import Array

ArrayLike = Tensor | Array | Sequence[Any]
LabelKind = Literal[
    "auto", "classes", "numbers"
]  # what labels are; auto: numbers where any is a fraction, else classes


def as_array(value: ArrayLike) -> Array:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def to_endpoints(src: ArrayLike, dst: ArrayLike | None) -> tuple[Array, Array]:
    """Sources and destinations, [E] each."""
    first = as_array(src)
    if dst is None:
        if first.ndim != 2 or first.shape[0] != 2:
            raise UserError(f"edge_index has shape {list(first.shape)}: give [2, E], or src and dst separately")
        first, second = first[0], first[1]
    else:
        second = as_array(dst)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(f"src has shape {list(first.shape)} and dst {list(second.shape)}: give lists of one length")
    if first.size == 0:  # an empty Python list is float64 to numpy
        return first.astype(np.int64), second.astype(np.int64)
    return first, second


def to_features(x: ArrayLike) -> Tensor:
    """Vertex features as float32 or bfloat16 [N, F]."""
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(_shareable(np.asarray(x)))
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if tensor.dim() != 2:
        raise UserError(f"features have shape {list(tensor.shape)}: give one row per vertex, [N, F]")
    if tensor.is_complex():
        raise UserError("features are complex numbers: give real ones")
    return tensor if tensor.dtype == torch.bfloat16 else tensor.to(torch.float32)


def to_labels(y: ArrayLike, kind: LabelKind = "auto") -> Tensor:
    """Classes as int64 [N] or int8 [N, C], -1: unknown; numbers as float32 [N] or [N, T], NaN: unknown."""
    if kind not in get_args(LabelKind):
        raise unknown("label kind", kind, get_args(LabelKind))
    array = as_array(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise UserError(f"labels have shape {list(array.shape)}: give [N], or [N, C] of 0/1 for several labels")
    if kind == "numbers" or (kind == "auto" and _has_fractions(array)):
        return _to_numbers(array)
    if array.dtype.kind == "f":  # missing labels come as NaN
        known = np.nan_to_num(array, nan=-1)
        if (known != np.floor(known)).any():
            at = int(np.flatnonzero((known != np.floor(known)).reshape(known.shape[0], -1).any(1))[0])
            raise UserError(f"the label of vertex {at} is {array[at]}: classes are whole numbers")
        array = known.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise UserError(f"labels are {array.dtype}: give whole numbers, with class_names for their names")
    if array.ndim == 1:
        return torch.from_numpy(array.astype(np.int64))
    if array.size and (array.astype(np.int64).min() < -1 or array.max() > 1):
        at = int(np.flatnonzero(((array < -1) | (array > 1)).any(1))[0])
        raise UserError(f"row {at} of the labels has values other than 0, 1 and -1 (unknown)")
    return torch.from_numpy(array.astype(np.int8))


def _has_fractions(array: Array) -> bool:
    if array.dtype.kind != "f":
        return False
    known = array[~np.isnan(array)]
    return bool((known != np.floor(known)).any())


def _to_numbers(array: Array) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise UserError(f"labels are {array.dtype}, and numbers are to be predicted: give numbers")
    with np.errstate(over="ignore"):  # too large for float32: infinite, which is refused with the vertex
        return torch.from_numpy(array.astype(np.float32))


def count_classes(y: Tensor | None, num_classes: int | None, class_names: Sequence[str] | None) -> int:
    """The number of classes that is given or, without one, that labels or names show; 0 where labels are numbers."""
    if y is not None and y.is_floating_point():
        targets = 1 if y.dim() == 1 else y.shape[1]
        if class_names is not None and len(class_names) != targets:
            raise UserError(f"there are {len(class_names)} class names for {targets} numbers of each vertex")
        return int(num_classes or 0)
    if num_classes is not None:
        count = int(num_classes)
    elif y is not None and y.dim() == 2:
        count = y.shape[1]
    elif class_names is not None:
        count = len(class_names)
    elif y is not None and y.numel():
        count = int(y.max()) + 1
    else:
        count = 0
    if class_names is not None and len(class_names) != count:
        raise UserError(f"there are {len(class_names)} class names for {count} classes")
    return count


def to_weights(weight: ArrayLike, num_edges: int) -> Tensor:
    """float32 [E]."""
    array = as_array(weight)
    if array.dtype.kind not in "biuf":
        raise UserError(f"edge weights are {array.dtype}: give numbers")
    if array.shape not in ((num_edges,), (num_edges, 1)):
        raise UserError(f"edge weights have shape {list(array.shape)} for {num_edges} edges: give one per edge")
    return torch.from_numpy(array.reshape(-1).astype(np.float32))


def to_edge_features(features: ArrayLike, num_edges: int) -> Tensor:
    """float32 [E, F]."""
    array = as_array(features)
    if array.dtype.kind not in "biuf":
        raise UserError(f"edge features are {array.dtype}: give numbers")
    tensor = torch.from_numpy(_shareable(array.reshape(-1, 1) if array.ndim == 1 else array)).to(torch.float32)
    check_edge_features(tensor, num_edges)
    return tensor


def to_mask(mask: ArrayLike | None) -> Tensor | None:
    """bool [N] or [S, N]."""
    if mask is None:
        return None
    array = as_array(mask)
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise UserError("a split mask holds something other than true and false: give one boolean per vertex")
        array = array.astype(np.bool_)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_column(name: str, values: ArrayLike) -> Tensor:
    """A column of vertex data that weft does not interpret: numbers of the type given, unsigned ones as signed."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return values
    array = as_array(values)
    if array.dtype.kind not in "biuf":
        raise UserError(f"vertex data '{name}' holds {array.dtype}: give numbers")
    return torch.from_numpy(_shareable(array.astype(signed(array.dtype), copy=False)))


def signed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a column of numbers is kept: of this machine's byte order, and with a sign."""
    if dtype.kind == "u":
        return np.dtype(np.int16 if dtype.itemsize == 1 else np.int64)
    return dtype.newbyteorder("=")


def _shareable(array: Array) -> Array:
    """torch shares memory with writable arrays only, and has no string or object type."""
    if array.dtype.kind not in "biuf":
        raise UserError(f"an array of {array.dtype} was given where numbers are needed")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.writeable else array.copy()
