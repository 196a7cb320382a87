"""What was decided about each column of a table of vertices, and the statistics that it was decided from.

A `Preparation` is kept as JSON in the manifest of graph and partition folders, which has a digest. New rows are
prepared by what it says alone (`weft.graph.preparation.apply`), so that they mean to a model what the old ones did.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from weft.errors import UserError, unknown

ONE_HOT_MOST = 64  # distinct values of a category that get a column each
BUCKETS = 64  # columns that the values of a larger category are hashed to

Holds = Literal["numbers", "flags", "categories", "dates", "vectors"]
Becomes = Literal["standardised", "logarithm", "flag", "one-hot", "hashed", "learned", "unchanged", "nothing"]


class FeatureChoices(BaseModel):
    """What a user says about the columns of a table; of the others the values decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: tuple[str, ...] = ()  # columns that are features; empty: all that nothing else is known of
    ignored: tuple[str, ...] = ()  # columns that are none
    categories: tuple[str, ...] = ()  # columns whose values are names, though they are written as numbers or are text
    learned: tuple[str, ...] = ()  # such columns, of whose values a model learns a row each
    logarithms: tuple[str, ...] = ()  # columns of numbers with a long tail
    raw: bool = False  # numbers go into the features as they are

    @property
    def names(self) -> tuple[str, ...]:
        """Columns whose values are names because the user says so."""
        return (*self.categories, *self.learned)

    def select(self, path: object, columns: Iterable[str], free: Iterable[str]) -> tuple[str, ...]:
        """The columns that features are made of. columns: all of the table; free: those that have no other role."""
        columns = tuple(columns)
        for name in (*self.features, *self.ignored):
            if name not in columns:
                raise UserError(f"{path}: {unknown('column', name, columns)}")
        both = set(self.features) & set(self.ignored)
        if both:
            raise UserError(f"column '{min(both)}' is asked for as a feature and to be ignored: name it once")
        chosen = self.features or tuple(name for name in free if name not in self.ignored)
        for name in (*self.names, *self.logarithms):
            if name not in chosen:
                raise UserError(f"{path}: {unknown('feature column', name, chosen)}")
        both = set(self.names) & set(self.logarithms)
        if both:
            raise UserError(f"column '{min(both)}' is asked for as a category and as a logarithm: name it once")
        if self.raw and (self.names or self.logarithms):
            raise UserError(
                "raw features are numbers as they are: leave out categories and logarithms, or raw features"
            )
        return chosen


class Decision(BaseModel):
    """One column of a table: what it holds, and what becomes of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    holds: Holds
    becomes: Becomes
    size: int  # columns of the features that its values become
    indicator: bool = False  # one column more, which is 1 where the value is missing
    mean: float | None = (
        None  # of the training vertices' values; days since 1970 for dates; of the logarithms for those
    )
    spread: float | None = None  # their standard deviation
    missing: float = 0.0  # share of the training vertices without a value
    categories: tuple[str, ...] = ()  # for one-hot: the value that each column stands for; for learned: value k + 1's
    why: str = ""  # where nothing becomes of it

    @model_validator(mode="after")
    def _check(self) -> Self:
        scaled = self.becomes in ("standardised", "logarithm")
        if scaled and (self.mean is None or not self.spread):
            raise ValueError(f"column '{self.column}' has no mean or no spread")
        if self.size != {"one-hot": len(self.categories), "nothing": 0}.get(self.becomes, self.size) or self.size < 0:
            raise ValueError(f"column '{self.column}' has a wrong size")
        if (scaled or self.becomes in ("flag", "learned")) and self.size != 1:
            raise ValueError(f"column '{self.column}' has a wrong size")
        return self

    @property
    def num_features(self) -> int:
        return self.size + self.indicator

    @property
    def names(self) -> list[str]:
        """A name for each of its columns among the features."""
        if self.becomes == "one-hot":
            names = [f"{self.column}={value}" for value in self.categories]
        elif self.becomes == "hashed":
            names = [f"{self.column} #{bucket}" for bucket in range(self.size)]
        elif self.holds == "vectors":
            names = vector_names(self.column, self.size)
        else:
            names = [self.column] * self.size
        return [*names, f"{self.column} missing"] if self.indicator else names


class Preparation(BaseModel):
    """How the features of a graph came out of a file, column by column, in the order of the features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    source: str  # the name of the file
    of_training: bool  # whether statistics are of training vertices; False: of all rows, where there is no split
    num_rows: int  # how many rows they are of
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know

    @property
    def num_features(self) -> int:
        return sum(decision.num_features for decision in self.decisions)

    @property
    def names(self) -> list[str]:
        return [name for decision in self.decisions for name in decision.names]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that new rows must have."""
        return tuple(decision.column for decision in self.decisions if decision.num_features)

    @property
    def learned(self) -> tuple[tuple[int, int], ...]:
        """Columns of the features that hold numbers of values: their position, and how many values there are."""
        found, position = [], 0
        for decision in self.decisions:
            if decision.becomes == "learned":
                found.append((position, len(decision.categories)))
            position += decision.num_features
        return tuple(found)

    @property
    def making(self) -> tuple[object, ...]:
        """What it does to rows, apart from what it knows of them: equal where equal rows become equal features."""
        return tuple(
            (
                None if one.becomes == "unchanged" else one.column,
                one.becomes,
                one.size,
                one.indicator,
                (one.mean, one.spread) if one.becomes in ("standardised", "logarithm") else None,
                one.categories,
            )
            for one in self.decisions
            if one.num_features
        )

    def with_notes(self, *notes: str) -> "Preparation":
        return self.model_copy(update={"notes": (*self.notes, *notes)})


def vector_names(column: str, width: int) -> list[str]:
    return [f"{column}[{index}]" for index in range(width)]


def read_preparation(manifest: Mapping[str, Any], where: object, advice: str) -> Preparation | None:
    """That of a folder's manifest; None where it has none, as folders of weft before it had."""
    kept = manifest.get("preparation")
    if kept is None:
        return None
    try:
        return Preparation.model_validate(kept)
    except ValidationError as error:
        place = ".".join(str(key) for key in error.errors()[0]["loc"])
        raise UserError(f"the preparation of features in {where} is damaged (at '{place}'): {advice}") from None
