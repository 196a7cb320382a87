"""Input rows that never change: their aggregates are computed, and exchanged, once."""

from collections.abc import Callable, Mapping

from torch import Tensor

from weft.aggregate.topology import By, Reduce, Weight

Name = tuple[Reduce, Weight, By]  # of an aggregate: (reduce, weight, by), the weight not a tensor


class ConstantInput:
    """Rows that never change, known as this very tensor, and the aggregates of them that have been asked for."""

    def __init__(
        self, rows: Tensor, compute: Callable[[Name], Tensor], aggregates: Mapping[Name, Tensor] | None = None
    ) -> None:
        """`compute` makes an aggregate that is asked for the first time; `aggregates` are known from the start."""
        self.rows = rows
        self._of: ConstantInput | None = None  # the whole input that this is a part of
        self._compute = compute
        self._aggregates = dict(aggregates or {})
        self.gathered: Tensor | None = None  # these rows and those that arrive, in one place, once asked for

    @property
    def whole(self) -> Tensor:
        """The rows of the whole input, of which these are the first ones."""
        return self.rows if self._of is None else self._of.rows

    def aggregate(self, name: Name) -> Tensor:
        if name not in self._aggregates:
            self._aggregates[name] = self._compute(name)
        return self._aggregates[name]

    def part(self, num_in: int, num_out: int) -> "ConstantInput":
        """The first rows of it, of which the first `num_out` are aggregated: no computing of their own."""
        return self._first(self.rows[:num_in], num_out)

    def squared(self) -> "ConstantInput":
        """The same rows, all of which are aggregated."""
        return self if self._of is None else self._of._first(self.rows, self.rows.shape[0])

    def _first(self, rows: Tensor, num_out: int) -> "ConstantInput":
        part = ConstantInput(rows, lambda name: self.aggregate(name)[:num_out])
        part._of = self
        return part
