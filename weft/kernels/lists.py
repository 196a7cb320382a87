"""The non-zeros of rows that are multiplied again and again, listed once."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Lists:
    """Of each row, or of each column of blocks of rows; what the numbers mean, the backend knows that made them."""

    starts: Tensor  # int64 [lists + 1]
    offsets: Tensor  # int32
    values: Tensor  # float32
    num_rows: int
    by_column: bool

    def first(self, num_rows: int) -> "Lists":
        """Those of the first rows, sharing memory."""
        assert not self.by_column, "a block of rows cannot be cut"
        return Lists(self.starts[: num_rows + 1], self.offsets, self.values, num_rows, False)
