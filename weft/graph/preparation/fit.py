"""The first pass over a table: statistics of training vertices, and a decision about each column.

Columns whose type says too little are decided by their values: text may be numbers, dates, categories or text.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.preparation.decide import (
    Decided,
    decide_flags,
    decide_learned,
    decide_numbers,
    decide_raw,
    decide_text,
    decide_vectors,
    note_large,
    refuse_text,
)
from weft.graph.preparation.schema import FeatureChoices, Preparation, vector_names
from weft.graph.preparation.statistics import Moments, NumberStatistics, TextStatistics
from weft.graph.preparation.values import Kind, days_of, kind_of_type, numbers_of, texts_of
from weft.graph.tables import TableFile, feature_batches, list_rows

VALUES_PER_PIECE = 1 << 20


@dataclass(frozen=True)
class FeatureTable:
    """The columns of a table that features are made of."""

    table: TableFile
    columns: tuple[str, ...]


@dataclass
class _Vectors:
    """Of a column of lists."""

    width: int = 0
    moments: Moments = field(default_factory=Moments)
    squares: Array | None = None  # [W] sums

    def add(self, rows: Array) -> None:
        self.width = rows.shape[1]
        self.moments.add(rows.reshape(-1).astype(np.float64))
        squares = np.square(rows, dtype=np.float64).sum(0)
        self.squares = squares if self.squares is None else self.squares + squares


def fit(
    source: FeatureTable, choices: FeatureChoices, training: Array | None = None, labels: Array | None = None
) -> Preparation:
    """What becomes of each column of a table.

    training: bool [rows], whose statistics count; None: all rows. labels: int [rows] by which a column is recognised as
    the label, -1 unknown; or [rows, C], or numbers to predict, by which none is; None: there are none. Both may be
    mapped from files: they are read row by row.
    """
    gathered = [_Column(name, source.table.path, choices) for name in source.columns]
    of_classes = labels is not None and labels.ndim == 1 and labels.dtype.kind != "f"
    single = labels if of_classes else None
    first = used = 0
    for batch in feature_batches(source.table, source.columns, choices.names):
        rows = slice(first, first + batch.num_rows)
        chosen = None if training is None else np.flatnonzero(training[rows])
        of_rows = None if single is None else np.asarray(single[rows], np.int64)
        first = rows.stop
        if chosen is not None:
            batch = batch.take(pa.array(chosen))
            of_rows = None if of_rows is None else of_rows[chosen]
        row_numbers = rows.start + (np.arange(batch.num_rows) if chosen is None else chosen)
        if not batch.num_rows:
            continue
        used += batch.num_rows
        for column in gathered:
            column.add(batch.column(column.name), row_numbers, of_rows)
    decided = [column.decide(labels is not None) for column in gathered]
    raw = [column for column in gathered if column.kind == "vectors" or choices.raw]
    notes = note_large([name for one in raw for name in one.names], [size for one in raw for size in one.sizes(used)])
    return Preparation(
        source=source.table.path.name,
        of_training=training is not None,
        num_rows=used,
        decisions=tuple(one.decision for one in decided),
        notes=(*(note for one in decided for note in one.notes), *notes),
    )


def describe_array(x: Array, name: str, training: Array | None = None) -> Preparation:
    """An array of features [N, F], which stays as it is: its mean and spread, and a note where it is large."""
    seen, used = _Vectors(), 0
    step = max(1, VALUES_PER_PIECE // max(1, x.shape[1]))
    for begin in range(0, x.shape[0], step):
        rows = np.asarray(x[begin : begin + step])
        chosen = rows if training is None else rows[training[begin : begin + step]]
        seen.add(chosen)
        used += len(chosen)
    decision = decide_vectors("x", x.shape[1], seen.moments).decision
    squares = np.zeros(x.shape[1]) if seen.squares is None else seen.squares
    return Preparation(
        source=name,
        of_training=training is not None,
        num_rows=used,
        decisions=(decision,),
        notes=note_large(decision.names, np.sqrt(squares / max(1, used)).tolist()),
    )


class _Column:
    """One column while its statistics are gathered."""

    def __init__(self, name: str, path: Path, choices: FeatureChoices) -> None:
        self.name = name
        self.kind: Kind | None = None
        self._path, self._choices = path, choices
        self._numbers, self._text, self._vectors = NumberStatistics(), TextStatistics(), _Vectors()
        self._dates = NumberStatistics()

    def add(self, column: pa.Array, rows: Array, labels: Array | None) -> None:
        """column: values of training vertices, which stand in these rows."""
        kind = self._kind(column.type)
        if self.kind and kind != self.kind:
            raise UserError(
                f"column '{self.name}' of {self._path} holds {self.kind} first and {kind} from row {rows[0]} on"
            )
        self.kind = kind
        if kind == "vectors":
            found = list_rows(self._path, column, int(rows[0]), "vertex", self._vectors.width or None)
            self._refuse(np.asarray(~np.isfinite(found).all(1)), rows)
            self._vectors.add(found)
        elif kind in ("text", "categories"):
            self._add_text(column, rows, labels)
        else:
            values = days_of(column) if kind == "dates" else numbers_of(column)
            self._add_numbers(values, rows, labels, self._dates if kind == "dates" else self._numbers)

    def _kind(self, found: pa.DataType) -> Kind:
        kind = kind_of_type(found)
        if kind is None:
            raise UserError(
                f"column '{self.name}' of {self._path} holds {found}, features are numbers: leave it out with "
                f"--ignore-columns {self.name}, or say with --id-column or --label-column what it is"
            )
        if kind == "vectors" and self.name in self._choices.learned:
            raise UserError(f"column '{self.name}' of {self._path} holds lists: leave it out of --learned-columns")
        if kind == "vectors":
            return kind
        if self._choices.raw and kind not in ("numbers", "flags"):
            raise UserError(
                f"column '{self.name}' of {self._path} holds {found}, raw features are numbers: leave it out with "
                f"--ignore-columns {self.name}, or let weft prepare the features"
            )
        return "categories" if self.name in self._choices.names else kind

    def _add_text(self, column: pa.Array, rows: Array, labels: Array | None) -> None:
        """Text, which may turn out to be numbers or dates: then their statistics are there too."""
        codes, texts = texts_of(column)
        text = self._text
        text.add(codes, texts, labels)
        if self.kind == "text" and text.overflow and not (text.all_numbers or text.all_dates):
            refuse_text(self._path, self.name, text)  # now, for what it is can no longer change
        if self.kind == "text" and text.all_numbers:
            self._add_numbers(numbers_of(column), rows, labels, self._numbers)
        if self.kind == "text" and text.all_dates and text.known:
            self._add_numbers(days_of(column), rows, labels, self._dates)

    def _add_numbers(self, values: Array, rows: Array, labels: Array | None, into: NumberStatistics) -> None:
        self._refuse(np.isnan(values) | np.isinf(values) if self._choices.raw else np.isinf(values), rows)
        into.add(logarithm(values) if self.name in self._choices.logarithms else values, labels)

    def _refuse(self, wrong: Array, rows: Array) -> None:
        """wrong: bool [rows] where values are no numbers to learn from."""
        if wrong.any():
            raise UserError(
                f"features have NaN or infinite values, first in row {rows[np.flatnonzero(wrong)[0]]} of {self._path}, "
                f"column '{self.name}': replace them before training"
            )

    def decide(self, labelled: bool) -> Decided:
        name, choices = self.name, self._choices
        asked = name in choices.logarithms
        if self.kind == "vectors":
            return decide_vectors(name, self._vectors.width, self._vectors.moments)
        if choices.raw:
            return decide_raw(name, self._numbers.moments)
        written_numbers = self.kind == "text" and self._text.known and self._text.all_numbers
        if asked and self.kind != "numbers" and not written_numbers:
            raise UserError(f"column '{name}' of {self._path} holds no numbers: leave it out of --log-columns")
        if self.kind == "flags":
            return decide_flags(name, self._numbers)
        if self.kind == "dates" or (self.kind == "text" and self._text.known and self._text.all_dates):
            return decide_numbers(name, self._dates, dates=True)
        if self.kind == "numbers" or written_numbers or (not self.kind and name not in choices.learned):
            return decide_numbers(name, self._numbers, logarithm=asked, labelled=labelled)
        if name in choices.learned:
            return decide_learned(self._path, name, self._text)
        return decide_text(self._path, name, self._text, self.kind == "categories")

    @property
    def names(self) -> list[str]:
        """Of its columns among the features, where it stays as it is."""
        if self.kind == "vectors":
            return vector_names(self.name, self._vectors.width)
        return [self.name]

    def sizes(self, num_rows: int) -> list[float]:
        """The root of the mean square of each column that stays as it is."""
        if self.kind == "vectors":
            squares = self._vectors.squares
            return [] if squares is None else np.sqrt(squares / max(1, num_rows)).tolist()
        seen = self._numbers.moments
        return [math.hypot(seen.mean, seen.spread)]


def logarithm(values: Array) -> Array:
    """log(1 + value), and -log(1 - value) of negative ones."""
    return np.sign(values) * np.log1p(np.abs(values))
