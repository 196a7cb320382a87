"""Relations: the kinds of a graph's edges, numbered from 0 and perhaps named."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.files import Array

MAX_RELATIONS = 2**15 - 1  # relation numbers are int16


class Relations(NamedTuple):
    of_edge: Tensor | None = None  # int16 [E]; None: all edges are of one kind
    total: int = 0
    names: tuple[str, ...] | None = None

    def with_reverses(self) -> "Relations":
        """The kinds of a graph whose edges also run backwards: the reverse of relation r is relation r + total."""
        if self.of_edge is None:
            return self
        names = self.names or tuple(str(number) for number in range(self.total))
        return self._replace(total=2 * self.total, names=(*names, *(f"{name} (reverse)" for name in names)))


def number_relations(given: Array, num_edges: int, count: int | None, names: Sequence[str] | None) -> Relations:
    """Relations from one number or one name per edge. Names are numbered in the order of `names`, else ascending."""
    if given.shape != (num_edges,):
        raise UserError(f"relations have shape {list(given.shape)} for {num_edges} edges: give one per edge")
    if given.dtype.kind in "UOT":
        found, numbers = np.unique(given.astype(np.str_), return_inverse=True)
        known = {str(name): number for number, name in enumerate(found if names is None else names)}
        for name in found:
            if name not in known:
                raise unknown("relation", str(name), known)
        numbers = np.array([known[str(name)] for name in found], np.int64)[numbers]
        names = tuple(known)
    elif given.dtype.kind in "iu" or given.size == 0:
        numbers = given.astype(np.int64)
    else:
        raise UserError(f"relations are {given.dtype}: give whole numbers from 0, or names")
    if count is None:
        count = len(names) if names is not None else max(1, int(numbers.max(initial=-1)) + 1)
    check_count(count)
    if names is not None and len(names) != count:
        raise UserError(f"there are {len(names)} relation names for {count} relations")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= count))
    if wrong.size:
        at = int(wrong[0])
        raise UserError(
            f"edge {at} has relation {int(numbers[at])}, outside 0..{count - 1}: mend it or give more relations"
        )
    return Relations(torch.from_numpy(numbers.astype(np.int16)), count, None if names is None else tuple(names))


def number_names(codes: Array, names: Sequence[str], path: object) -> tuple[Array, tuple[str, ...] | None]:
    """Relations of a file: codes [E] into distinct texts. Numbers 0..R-1 stand for themselves, else texts are names.

    Names are numbered ascending, whole numbers among themselves by their value.
    """
    if all(name.removeprefix("-").isdecimal() for name in names):
        order = sorted(range(len(names)), key=lambda k: int(names[k]))
        if names and int(names[order[0]]) < 0:
            raise UserError(f"{path} has relation {names[order[0]]}: relations are numbered from 0, or named by text")
    else:
        order = sorted(range(len(names)), key=lambda k: names[k])
    check_count(len(names))
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    ascending = tuple(names[k] for k in order)
    dense = ascending == tuple(str(number) for number in range(len(names)))
    return rank[codes], None if dense else ascending


def check_count(count: int) -> None:
    if count > MAX_RELATIONS:
        raise UserError(
            f"the edges have {count} relations, more than the {MAX_RELATIONS} that weft can hold: join some"
        )
