"""Input rows that never change: their aggregates are computed, and exchanged, once."""

from collections.abc import Callable, Mapping

from torch import Tensor

from weft.aggregate.topology import By, Reduce, Weight
from weft.kernels.lists import Lists
from weft.kernels.products import list_nonzeros

Name = tuple[Reduce, Weight, By]  # of an aggregate: (reduce, weight, by), the weight not a tensor


class Nonzeros:
    """The non-zeros of rows that never change, listed for products with these rows and for sums over them."""

    def __init__(self, x: Tensor, by_row: Lists) -> None:
        self.by_row = by_row
        self._x = x
        self._by_column: Lists | None = None

    @property
    def by_column(self) -> Lists | None:
        """Made when it is first asked for: evaluation does without."""
        if self._by_column is None:
            self._by_column = list_nonzeros(self._x, by_column=True)
        return self._by_column


class ConstantInput:
    """Rows that never change, known as this very tensor, and the aggregates of them that have been asked for."""

    def __init__(
        self,
        rows: Tensor,
        compute: Callable[[Name], Tensor],
        aggregates: Mapping[Name, Tensor] | None = None,
        lasting: bool = False,
    ) -> None:
        """`compute` makes an aggregate that is asked for the first time; `aggregates` are known from the start.

        `lasting`: the rows are those of all epochs, so that it pays to list their non-zeros.
        """
        self.rows = rows
        self._of: ConstantInput | None = None  # the whole input that this is a part of
        self._compute = compute
        self._aggregates = dict(aggregates or {})
        self.gathered: Tensor | None = None  # these rows and those that arrive, in one place, once asked for
        self._lasting = lasting
        self._lists: dict[Name | None, Lists | None] = {}  # by row, of the rows (None) and of their aggregates
        self._nonzeros: dict[tuple[Name | None, int], Nonzeros] = {}  # of so many first rows

    @property
    def whole(self) -> Tensor:
        """The rows of the whole input, of which these are the first ones."""
        return self.rows if self._of is None else self._of.rows

    def aggregate(self, name: Name) -> Tensor:
        if name not in self._aggregates:
            self._aggregates[name] = self._compute(name)
        return self._aggregates[name]

    def nonzeros(self, x: Tensor) -> Nonzeros | None:
        """Those of x, if x are rows of this input or an aggregate, or the first of them, and listing them pays."""
        if self._of is not None:
            return self._of.nonzeros(x)
        if not self._lasting or type(x) is not Tensor:
            return None
        for name, known in [(None, self.rows), *self._aggregates.items()]:
            if _are_first_rows(x, known):
                return self._listed(name, known, x)
        return None

    def _listed(self, name: Name | None, known: Tensor, x: Tensor) -> Nonzeros | None:
        if name not in self._lists:
            self._lists[name] = list_nonzeros(known, by_column=False)
        lists = self._lists[name]
        if lists is None:
            return None
        key = (name, x.shape[0])
        if key not in self._nonzeros:
            self._nonzeros[key] = Nonzeros(x, lists.first(x.shape[0]))
        return self._nonzeros[key]

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


def _are_first_rows(x: Tensor, known: Tensor) -> bool:
    """Whether x lies where `known` begins, which is alive: the same numbers then."""
    return (
        x.data_ptr() == known.data_ptr()
        and (x.dtype, x.stride(), x.shape[1:]) == (known.dtype, known.stride(), known.shape[1:])
        and x.shape[0] <= known.shape[0]
    )
