"""What edges carry on their way from files to parts: arrays by the names of `EDGE_DATA`, a value for each edge."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from weft.graph.csr import EDGE_DATA
from weft.graph.files import Array

CARRIED = ("weight", "time")  # what edge files may say of an edge, in the order of EDGE_DATA
Carried = Mapping[str, Array]


def dtype_of(name: str) -> np.dtype[np.generic]:
    """The type in files."""
    return torch.empty(0, dtype=EDGE_DATA[name].dtype).numpy().dtype


def bytes_of(names: Iterable[str]) -> int:
    """Of what one edge carries."""
    return sum(dtype_of(name).itemsize for name in names)


def empty(names: Iterable[str], count: int) -> dict[str, Array]:
    return {name: np.empty(count, dtype_of(name)) for name in names}


def as_bytes(arrays: Iterable[Array]) -> list[Array]:
    """uint8 [E, bytes of a value], sharing memory: native code moves values without knowing what they are."""
    return [array.view(np.uint8).reshape(array.size, array.itemsize) for array in arrays]


def pick(data: Carried, edges: Array) -> dict[str, Array]:
    return {name: array[edges] for name, array in data.items()}


def named(names: Sequence[str], arrays: Sequence[Array]) -> dict[str, Array]:
    """The arrays by their names; none at all where nothing was sent."""
    return dict(zip(names, arrays, strict=True))
