"""What vertices carry: one mapping from names to tensors with an entry per vertex.

Code that moves vertices (cutting, merging, reordering, files) loops over the mapping and never asks for a name. Columns
of any name may be added to it; what must hold of the columns that weft itself reads is declared in VERTEX_DATA.

Where vertices are of several types (weft.graph.types), a column says of which type each is, and the features of a type
lie in a block: a column with a row for every vertex of that type, in the order of the vertices.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from weft.errors import UserError
from weft.kernels import memory

SPLITS = ("train", "val", "test")


Predicted = Literal["class", "labels", "numbers", "embedding"]  # what is predicted of something


def kind_of_labels(are_floats: bool, num_dims: int) -> Predicted:
    return "numbers" if are_floats else "labels" if num_dims == 2 else "class"


@dataclass(frozen=True)
class VertexArray:
    """What must hold of one column of vertex data."""

    forms: tuple[tuple[torch.dtype, int], ...] = ()  # (type, number of dimensions) that it may have; (): any
    vertex_dim: int = 0  # the dimension that counts vertices

    def num_vertices(self, rows: Tensor) -> int:
        return rows.shape[self.vertex_dim] if rows.dim() else 0

    def fits(self, rows: Tensor, num_vertices: int) -> bool:
        """Whether a tensor has one of the forms and an entry for each of so many vertices."""
        return self.num_vertices(rows) == num_vertices and (not self.forms or (rows.dtype, rows.dim()) in self.forms)


_MASK = VertexArray(((torch.bool, 1), (torch.bool, 2)), -1)  # [N], or [S, N] where a data set has S public splits
VERTEX_DATA: Mapping[str, VertexArray] = {
    "x": VertexArray(((torch.float32, 2), (torch.bfloat16, 2))),  # features [N, F]
    # class [N], or several labels [N, C] of 0/1, -1: unknown; or numbers [N] or [N, T], NaN: unknown
    "y": VertexArray(((torch.int64, 1), (torch.int8, 2), (torch.float32, 1), (torch.float32, 2))),
    **{f"{split}_mask": _MASK for split in SPLITS},
    "time": VertexArray(((torch.float64, 1),)),  # from when each vertex is looked at; NaN: unknown
}
TYPE = "vertex_type"  # the column that says of which type each vertex is, int16 [N]
_TYPE = VertexArray(((torch.int16, 1),))
_BLOCK = VertexArray(((torch.float32, 2), (torch.bfloat16, 2)))
_BLOCK_NAME = re.compile(r"x_of_([0-9]+)")
_FURTHER = VertexArray()
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The files of vertex data lie beside these in the folders of graphs and parts.
_TAKEN = re.compile(
    r"indptr|indices|weight|relation|edge_features|edge_time|original_ids|global_ids|position|(local|remote|halo)_.*"
)


def vertex_array(name: str) -> VertexArray:
    """What must hold of the column of this name; of one that is not declared: a row per vertex."""
    if block_type(name) is not None:
        return _BLOCK
    return _TYPE if name == TYPE else VERTEX_DATA.get(name, _FURTHER)


def block_name(kind: int) -> str:
    """The column with the features of a type of vertices."""
    return f"x_of_{kind}"


def block_type(name: str) -> int | None:
    """The type of vertices that a column has rows of; None: of all."""
    found = _BLOCK_NAME.fullmatch(name)
    return None if found is None else int(found[1])


def is_features(name: str) -> bool:
    """Whether a column holds features, of all vertices or of those of a type."""
    return name == "x" or block_type(name) is not None


def rows_in(columns: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Numbers of the vertices that a column has rows of, int64; None: all."""
    kind = block_type(name)
    return None if kind is None else (columns[TYPE] == kind).nonzero().squeeze(1)


def check_free_name(name: str) -> None:
    """Refuses names of columns that weft makes itself, where a user gives a column."""
    if name == TYPE or block_type(name) is not None:
        raise UserError(f"vertex data cannot be called '{name}': weft makes a column of that name; rename it")


def check_column_name(name: str) -> None:
    """Refuses a name that vertex data cannot have in files."""
    if not _NAME.fullmatch(name):
        raise UserError(f"vertex data '{name}' has a name that is no word of letters, digits and _: rename it")
    if _TAKEN.fullmatch(name):
        raise UserError(f"vertex data cannot be called '{name}': weft keeps another array under that name; rename it")


@dataclass(frozen=True, kw_only=True)
class HasVertexData:
    """A graph or a piece of one: `vertex_data`, and read access to the columns that weft itself reads."""

    vertex_data: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def x(self) -> Tensor | None:
        """Features, float32 or bfloat16 [N, F]; None: vertices without features."""
        return self.vertex_data.get("x")

    @property
    def y(self) -> Tensor | None:
        """Labels: int64 [N] (-1: unknown) or, with several per vertex, int8 [N, C] of 0/1 (-1: unknown).

        Of numbers that are to be predicted: float32 [N] or [N, T] (NaN: unknown).
        """
        return self.vertex_data.get("y")

    @property
    def num_targets(self) -> int:
        """How many numbers are to be predicted of each vertex; 0 where labels are classes, or there are none."""
        if self.y is None or not self.y.is_floating_point():
            return 0
        return 1 if self.y.dim() == 1 else self.y.shape[1]

    @property
    def train_mask(self) -> Tensor | None:
        """bool [N], or [S, N] where a data set has S public splits."""
        return self.vertex_data.get("train_mask")

    @property
    def val_mask(self) -> Tensor | None:
        return self.vertex_data.get("val_mask")

    @property
    def test_mask(self) -> Tensor | None:
        return self.vertex_data.get("test_mask")

    @property
    def time(self) -> Tensor | None:
        """The time at which each vertex is looked at, float64 [N]; NaN: unknown."""
        return self.vertex_data.get("time")

    @property
    def masks(self) -> dict[str, Tensor]:
        """Those of train, val and test that there are, by split."""
        names = {split: f"{split}_mask" for split in SPLITS}
        return {split: self.vertex_data[name] for split, name in names.items() if name in self.vertex_data}

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    @property
    def vertex_type(self) -> Tensor | None:
        """The type of each vertex, int16 [N]; None: all are of one type."""
        return self.vertex_data.get(TYPE)

    def features_of(self, kind: int) -> Tensor | None:
        """The features of the vertices of a type, a row for each of them; None: they have none."""
        return self.vertex_data.get(block_name(kind))

    def with_vertex_data(self, **columns: Tensor | None) -> Self:
        """The same with these columns instead of those of the same names; None removes one."""
        return replace(self, vertex_data=present(dict(self.vertex_data) | columns))


def present(columns: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The columns that are there, those of VERTEX_DATA first."""
    names = (*VERTEX_DATA, *(name for name in columns if name not in VERTEX_DATA))
    return {name: rows for name in names if (rows := columns.get(name)) is not None}


def map_columns(change: Callable[[Tensor], Tensor], columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: change(rows) for name, rows in columns.items()}


def select_vertices(columns: Mapping[str, Tensor], index: Tensor | None) -> dict[str, Tensor]:
    """Every column at these vertices, int64; None: as they are, sharing memory."""
    if index is None:
        return dict(columns)
    return {
        name: rows.index_select(vertex_array(name).vertex_dim, index_of_rows(columns, name, index))
        for name, rows in columns.items()
    }


def index_of_rows(columns: Mapping[str, Tensor], name: str, index: Tensor) -> Tensor:
    """Which rows of a column belong to these vertices, int64: of a block, those of its type among them."""
    kind = block_type(name)
    if kind is None:
        return index
    of_kind = columns[TYPE] == kind
    rank = torch.cumsum(of_kind, 0) - 1  # of a vertex of that type, its row
    return rank[index[of_kind[index]]]


def concat_vertices(pieces: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The vertices of all pieces, one after the other; all have the same columns."""
    if len(pieces) == 1:
        return dict(pieces[0])
    return {name: _concat([piece[name] for piece in pieces], vertex_array(name).vertex_dim) for name in pieces[0]}


def _concat(pieces: Sequence[Tensor], dim: int) -> Tensor:
    shape = list(pieces[0].shape)
    shape[dim] = sum(piece.shape[dim] for piece in pieces)
    return torch.cat(list(pieces), dim, out=memory.empty(shape, pieces[0].dtype))
