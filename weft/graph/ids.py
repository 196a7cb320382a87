"""Original ids, integers or strings, to vertex numbers 0..N-1 and back."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.errors import UserError
from weft.graph.files import Array


class IdMap:
    """Finds the vertex of an original id; `ids[k]` belongs to vertex k and occurs once."""

    def __init__(self, ids: Array, where: str = "the ids") -> None:
        self.ids, self.where = normal_ids(ids, where), where
        self.dense = self.ids.dtype.kind == "i" and bool(
            self.ids.size == 0
            or (self.ids[0] == 0 and self.ids[-1] == self.ids.size - 1 and (np.diff(self.ids) == 1).all())
        )
        if self.dense:
            return
        if self.ids.dtype.kind == "i":
            self._order = np.argsort(self.ids, kind="stable")
            self._sorted = self.ids[self._order]
            repeated = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
            if repeated.size:
                value = self._sorted[repeated[0]]
                rows = self._order[self._sorted == value][:2]
                raise _duplicate(value, rows, where)
        else:
            self._values = pa.array(self.ids)
            encoded = self._values.dictionary_encode()
            if len(encoded.dictionary) != self.ids.size:
                codes = encoded.indices.to_numpy()
                first = np.full(len(encoded.dictionary), -1, np.int64)
                first[codes[::-1]] = np.arange(codes.size)[::-1]
                row = int(np.flatnonzero(first[codes] != np.arange(codes.size))[0])
                raise _duplicate(self.ids[row], np.array([first[codes[row]], row]), where)

    def find(self, wanted: Array, what: str) -> Array:
        """The vertex (int64) of each wanted id; a UserError names the first that does not exist."""
        found = self.find_or_minus_one(wanted, what)
        missing = np.flatnonzero(found < 0)
        if missing.size:
            at = int(missing[0])
            raise UserError(
                f"{what} {at} has id '{wanted[at]}', which is not among {self.where}: add that vertex or drop the row"
            )
        return found

    def find_or_minus_one(self, wanted: Array, what: str) -> Array:
        wanted = normal_ids(wanted, what)
        if wanted.size == 0 or self.ids.size == 0:
            return np.full(wanted.size, -1, np.int64)
        if wanted.dtype.kind != self.ids.dtype.kind:
            wanted = _same_kind(wanted, self.ids.dtype.kind, what, self.where)
        if self.dense:
            return np.where((wanted >= 0) & (wanted < self.ids.size), wanted, -1)
        if self.ids.dtype.kind == "i":
            place = np.minimum(np.searchsorted(self._sorted, wanted), self.ids.size - 1)
            return np.where(self._sorted[place] == wanted, self._order[place], -1)
        index = pc.index_in(pa.array(wanted), value_set=self._values)
        return np.asarray(pc.fill_null(index, -1).to_numpy(zero_copy_only=False), np.int64)


def normal_ids(ids: Array, where: str) -> Array:
    """Integer ids as int64, string ids as fixed-width 'U'."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise UserError(f"{where} have shape {list(array.shape)}: give one id per vertex")
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise UserError(f"{where} hold integers beyond 64 bits signed: use strings")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind in "UOT":
        return array.astype(np.str_)
    if array.size == 0:
        return array.astype(np.int64)
    raise UserError(f"{where} are {array.dtype}: ids are integers or strings")


def map_endpoints(ids: Array, src: Array, dst: Array) -> tuple[Array, Array]:
    """Both ends of every edge as vertex numbers."""
    known = IdMap(ids)
    return known.find(src, "the source of edge"), known.find(dst, "the destination of edge")


def _same_kind(wanted: Array, kind: str, what: str, where: str) -> Array:
    """One file may hold '7' as text where the other holds the number 7."""
    if kind == "U":
        return wanted.astype(np.str_)
    numbers = as_integers(wanted)
    if numbers is None:
        at = next((text for text in wanted.tolist() if not _is_plain(text)), "")
        raise UserError(
            f"the ids of {what}s are text ('{at}'), those among {where} are integers: write them alike, and integers "
            "without leading zeros or signs, or name the column that holds them (--id-column)"
        )
    return numbers


def as_integers(texts: Array) -> Array | None:
    """Text as integers where each is written as an integer is; None where that would make one id of two ("01", "1")."""
    try:
        numbers = texts.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return numbers if bool((numbers.astype(texts.dtype) == texts).all()) else None


def _is_plain(text: str) -> bool:
    return text.lstrip("-").isdecimal() and str(int(text)) == text


def _duplicate(value: object, rows: Array, where: str) -> UserError:
    return UserError(f"id '{value}' occurs twice among {where}, in rows {int(rows[0])} and {int(rows[1])}: keep one")
