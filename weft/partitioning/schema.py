"""The arrays of a part's folder: their names, their types, and what each has a row for.

Both writers (of a graph in memory, and of edge files in weft.out_of_core) take names and types from here and check what
they wrote against it; the reader checks what it finds. An array that is not declared is a column of vertex data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from weft.graph.csr import EDGE_DATA
from weft.graph.vertexdata import VERTEX_DATA, block_type, vertex_array

Row = Literal["owned vertex", "offset", "halo vertex", "local edge", "remote edge"]
SIDES = ("local", "remote")  # edges from own vertices, and from those of other parts
IDS = "original_ids"


@dataclass(frozen=True)
class PartArray:
    """One array of a part."""

    name: str
    row: Row  # what it has a row for; offsets: one more than owned vertices
    dtype: np.dtype[Any] | None  # None: whatever the graph has
    required: bool
    about: str


@dataclass(frozen=True)
class PartSizes:
    """How many rows the arrays of a part have."""

    nodes: int
    halo: int
    edges: tuple[int, int]  # local and remote

    def of(self, row: Row) -> int:
        return {
            "owned vertex": self.nodes,
            "offset": self.nodes + 1,
            "halo vertex": self.halo,
            "local edge": self.edges[0],
            "remote edge": self.edges[1],
        }[row]


def edge_array(side: str, kind: str) -> str:
    """The name of an array of one side's edges: "indptr", "indices", or one of EDGE_DATA."""
    return f"{side}_{kind}"


def _of_side(side: Literal["local", "remote"]) -> list[PartArray]:
    row: Row = "local edge" if side == "local" else "remote edge"
    columns = "rows of this part" if side == "local" else "halo slots"
    return [
        PartArray(edge_array(side, "indptr"), "offset", np.dtype(np.int64), True, "where each vertex's edges begin"),
        PartArray(edge_array(side, "indices"), row, np.dtype(np.int32), True, f"sources of the edges, as {columns}"),
        *(
            PartArray(
                edge_array(side, name), row, torch.empty(0, dtype=kind.dtype).numpy().dtype, False, f"their {name}"
            )
            for name, kind in EDGE_DATA.items()
        ),
    ]


PART_ARRAYS: Mapping[str, PartArray] = {
    array.name: array
    for array in (
        PartArray("global_ids", "owned vertex", np.dtype(np.int64), True, "the part's vertices in their order"),
        *_of_side("local"),
        *_of_side("remote"),
        PartArray("halo_ids", "halo vertex", np.dtype(np.int64), True, "global ids, grouped by owning part"),
        PartArray("halo_rows", "halo vertex", np.dtype(np.int64), True, "their rows at the owning part"),
        PartArray(IDS, "owned vertex", None, False, "ids of the user's own files, integers or strings"),
        *(PartArray(name, "owned vertex", None, False, "vertex data that weft reads") for name in VERTEX_DATA),
    )
}


def part_array(name: str) -> PartArray:
    """The declaration of an array; one that is not declared is a further column of vertex data."""
    return PART_ARRAYS.get(name) or PartArray(name, "owned vertex", None, False, "vertex data")


def is_vertex_data(name: str) -> bool:
    return name in VERTEX_DATA or name not in PART_ARRAYS


def find_mistake(arrays: Mapping[str, Mapping[str, Any]], sizes: PartSizes, bfloat16: Sequence[str]) -> str | None:
    """What is wrong with the arrays of a part, as its manifest describes them; None: they are as declared.

    bfloat16: those that lie in files as int16.
    """
    for array in PART_ARRAYS.values():
        if array.required and array.name not in arrays:
            return f"it has no {array.name}"
    for name, described in arrays.items():
        try:
            array, shape, dtype = part_array(name), described["shape"], np.dtype(described["dtype"])
        except (TypeError, ValueError, SyntaxError):
            return f"its {name} is of a type that numpy does not know, {described['dtype']!r}"
        found = f"its {name} is {dtype} {list(shape)}"
        if array.dtype is not None and dtype != array.dtype:
            return f"{found}, not {array.dtype}"
        dim = vertex_array(name).vertex_dim if is_vertex_data(name) else 0
        one_type = block_type(name) is not None  # how many of its vertices are here, the column of types says
        if not shape or (shape[dim] != sizes.of(array.row) and not one_type):
            return f"{found}, for {sizes.of(array.row)} rows (one per {array.row})"
        if name in bfloat16 and dtype != np.int16:
            return f"{found}, which are no bits of bfloat16"
        if is_vertex_data(name) and not _has_form(name, dtype, len(shape), name in bfloat16):
            return found
    return None


def _has_form(name: str, dtype: np.dtype[Any], num_dims: int, bfloat16: bool) -> bool:
    """Whether the values of a column of vertex data are of a type and number of dimensions that it may have."""
    if dtype.kind not in "bif":
        return False
    forms = vertex_array(name).forms
    kind = torch.bfloat16 if bfloat16 else torch.from_numpy(np.empty(0, dtype)).dtype
    return not forms or (kind, num_dims) in forms
