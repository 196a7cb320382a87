"""Input columns that hold the number of a value: the model has a learned row for each value, and puts it in the place.

A table's column of many categories becomes such numbers (`weft.graph.preparation`, "learned"): 0 stands for every value
that no training vertex has, and for none at all, so that these share one row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LearnedColumn:
    """A column of numbers among the input's columns."""

    position: int
    num_values: int  # numbered from 1 on

    @classmethod
    def all_of(cls, pairs: Sequence[Sequence[int]]) -> "tuple[LearnedColumn, ...]":
        """From (position, num_values) of each."""
        return tuple(cls(*pair) for pair in pairs)


class LearnedColumns(nn.Module):
    """Rows [N, F] with learned rows of `width` in the place of such columns, after all that stays as it is.

    Every worker holds all of these rows, as it does all weights. The shared row of unknown values starts at zero.
    """

    def __init__(self, columns: Sequence[LearnedColumn], num_in: int, width: int) -> None:
        super().__init__()
        self.columns, self.num_out = tuple(columns), width_of(columns, num_in, width)
        self.tables = nn.ParameterList()
        for column in columns:
            bound = math.sqrt(3.0 / width)  # a variance of 1 / width, as rows of vertices without features start with
            table = torch.empty(column.num_values + 1, width).uniform_(-bound, bound)
            table[0] = 0.0
            self.tables.append(nn.Parameter(table))
        taken = {column.position for column in columns}
        self._others = [position for position in range(num_in) if position not in taken]

    def forward(self, x: Tensor) -> Tensor:
        rows = [x[:, self._others]]
        for column, table in zip(self.columns, self.tables, strict=True):
            rows.append(functional.embedding(x[:, column.position].long(), table).to(x.dtype))
        return torch.cat(rows, 1)


def learns_columns(model: nn.Module) -> bool:
    """Whether a model makes learned rows of columns: of all vertices' or of those of a type."""
    return any(isinstance(module, LearnedColumns) for module in model.modules())


def width_of(columns: Sequence[LearnedColumn], num_in: int, width: int) -> int:
    """How many columns come out of `LearnedColumns`."""
    return num_in + len(columns) * (width - 1)
