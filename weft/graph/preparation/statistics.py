"""What must be known of a column to decide about it, gathered batch by batch; its size does not depend on the rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weft.graph.files import Array
from weft.graph.preparation.values import days_of, numbers_of

DISTINCT_MOST = 1 << 16  # texts that are counted apart
LOOKED_AT = 1000  # texts of a batch that are tried as numbers
TINY = 1e-30  # a spread below it is none: squares of such values vanish
LABEL_VALUES_MOST = 1000  # a column of more distinct values is no label


@dataclass
class Moments:
    """Count, mean and spread of numbers, batch by batch (Chan's way of joining them)."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Array) -> None:
        """values: float64, NaN where one is missing."""
        known = values[~np.isnan(values)]
        self.missing += values.size - known.size
        if not known.size:
            return
        mean = float(known.mean())
        squares = float(np.square(known - mean).sum())
        total = self.count + known.size
        away = mean - self.mean
        self.squares += squares + away * away * self.count * known.size / total
        self.mean += away * known.size / total
        self.count = total
        self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))

    @property
    def spread(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def missing_share(self) -> float:
        return self.missing / max(1, self.count + self.missing)

    @property
    def constant(self) -> bool:
        """Whether all values are one, up to the rounding of float64."""
        return self.count == 0 or self.spread <= max(1e-12 * max(abs(self.low), abs(self.high)), TINY)

    @property
    def farthest(self) -> float:
        """How many spreads the value farthest from the mean is away from it."""
        return max(self.high - self.mean, self.mean - self.low) / self.spread if self.spread else 0.0


class LabelMatch:
    """Whether each class has a value of its own in a column, and each value a class: then the column is the label."""

    def __init__(self) -> None:
        self._label_of: dict[float, int] = {}
        self._value_of: dict[int, float] = {}
        self.broken = False

    def add(self, values: Array, labels: Array | None) -> None:
        """values: float64, NaN where one is missing; texts by numbers. labels: int64, -1 unknown; None: none."""
        if self.broken or labels is None:
            self.broken = True
            return
        judged = (labels >= 0) & ~np.isnan(values)
        values, labels = values[judged], labels[judged]
        for rows in (slice(LOOKED_AT), slice(LOOKED_AT, None)):  # a look at a few rows is enough for most columns
            if not self.broken:
                self._take(values[rows], labels[rows])

    def _take(self, values: Array, labels: Array) -> None:
        for value, label in set(zip(values.tolist(), labels.tolist(), strict=True)):
            if self._label_of.setdefault(value, label) != label or self._value_of.setdefault(label, value) != value:
                self.broken = True
        if len(self._label_of) > LABEL_VALUES_MOST:
            self.broken = True

    @property
    def found(self) -> bool:
        return not self.broken and len(self._label_of) > 1


@dataclass
class NumberStatistics:
    """Of a column of numbers, flags or days."""

    moments: Moments = field(default_factory=Moments)
    labels: LabelMatch = field(default_factory=LabelMatch)
    whole: bool = True

    def add(self, values: Array, labels: Array | None) -> None:
        self.moments.add(values)
        self.labels.add(values, labels)
        if self.whole:
            known = values[~np.isnan(values)]
            self.whole = bool((known == np.floor(known)).all())

    @property
    def small_counts(self) -> bool:
        """Whether the values are whole numbers from 0 (or 1) to a few more, as classes are numbered."""
        seen = self.moments
        return self.whole and seen.count > 0 and 0 <= seen.low <= 1 and 2 <= seen.high - seen.low <= 100


@dataclass
class TextStatistics:
    """Of a column of text."""

    known: int = 0  # rows with a value
    missing: int = 0
    characters: int = 0  # of all texts until there were too many distinct ones
    words: int = 0
    all_numbers: bool = True
    all_dates: bool = True
    tried: int = 0  # distinct texts of which it is known whether they are numbers
    numbers: int = 0  # how many of them are
    odd: str = ""  # one that is none
    counts: dict[str, int] = field(default_factory=dict)
    counted: int = 0  # rows with a value until there were too many distinct ones
    overflow: bool = False  # whether there were
    labels: LabelMatch = field(default_factory=LabelMatch)

    def add(self, codes: Array, texts: list[str], labels: Array | None) -> None:
        """codes: into texts, -1 where there is none."""
        counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        known = int(counts.sum())
        self.known += known
        self.missing += codes.size - known
        here = [texts[code] for code in np.flatnonzero(counts)]
        self._look_at(here)
        if self.overflow:
            return
        self.counted += known
        for text, count in zip(here, counts[counts > 0].tolist(), strict=True):
            self.counts[text] = self.counts.get(text, 0) + count
            self.characters += count * len(text)
            self.words += count * len(text.split())
        self.overflow = len(self.counts) > DISTINCT_MOST
        if not self.labels.broken:
            number = {text: place for place, text in enumerate(self.counts)}  # the same for each batch: texts only come
            places = np.array([*(number.get(text, -1) for text in texts), -1], np.float64)[codes]
            self.labels.add(np.where(places < 0, np.nan, places), labels)

    def _look_at(self, texts: list[str]) -> None:
        """Whether texts are numbers or dates."""
        column = pa.array(texts, pa.string())
        if self.all_dates:
            self.all_dates = _converts(days_of, column)
        if self.all_numbers:  # 007 is no number, but a name of digits
            self.all_numbers = not any(map(_is_padded, texts)) and _converts(numbers_of, column)
        for text in texts[:LOOKED_AT]:
            self.tried += 1
            if _is_number(text):
                self.numbers += 1
            elif not self.odd:
                self.odd = text

    @property
    def missing_share(self) -> float:
        return self.missing / max(1, self.known + self.missing)

    @property
    def distinct_share(self) -> float:
        """Distinct texts among rows, until there were too many to count."""
        return len(self.counts) / max(1, self.counted)


def _converts(convert: Callable[[pa.Array], Array], column: pa.Array) -> bool:
    try:
        convert(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _is_padded(text: str) -> bool:
    return len(text) > 1 and text[0] == "0" and text.isdecimal()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
