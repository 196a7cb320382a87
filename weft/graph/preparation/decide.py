"""From the statistics of a column to what becomes of it, with notes of what the user should know."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import UserError
from weft.graph.preparation.schema import BUCKETS, ONE_HOT_MOST, Decision, Holds
from weft.graph.preparation.statistics import LabelMatch, Moments, NumberStatistics, TextStatistics

FEW_VALUES = 10  # so many distinct texts are categories, however few rows there are
TEXT_SHARE = 0.5  # a column with more distinct texts than that for each row is text
TEXT_CHARACTERS, TEXT_WORDS = 60, 5  # a column of longer ones, in the mean, is text
MIXED_SHARE = 0.5  # where as many of the distinct texts are numbers, the others are mistakes
FAR = 8.0  # standard deviations from the mean: a long tail
LARGE = 1000.0  # features of that size slow learning down


@dataclass(frozen=True)
class Decided:
    decision: Decision
    notes: tuple[str, ...] = ()


def decide_numbers(
    column: str, seen: NumberStatistics, dates: bool = False, logarithm: bool = False, labelled: bool = True
) -> Decided:
    """Numbers and dates: standardised, or left out where all values are one. labelled: labels are known."""
    moments = seen.moments
    holds: Holds = "dates" if dates else "numbers"
    if moments.constant:
        return _left_out(column, holds, moments.count, moments.missing_share, moments.mean)
    notes = _label_notes(column, seen.labels)
    if not labelled and not dates and seen.small_counts:
        notes.append(
            f"column '{column}' holds the whole numbers {moments.low:g} to {moments.high:g} and there are no labels: "
            f"if it is the label, give --label-column {column}; if it names categories, --category-columns {column}"
        )
    if not logarithm and not dates and moments.farthest > FAR:
        notes.append(
            f"column '{column}' has a long tail (a value is {moments.farthest:.0f} standard deviations from the mean): "
            f"--log-columns {column} takes logarithms"
        )
    decision = Decision(
        column=column,
        holds=holds,
        becomes="logarithm" if logarithm else "standardised",
        size=1,
        indicator=moments.missing > 0,
        mean=moments.mean,
        spread=moments.spread,
        missing=moments.missing_share,
    )
    return Decided(decision, tuple(notes))


def decide_flags(column: str, seen: NumberStatistics) -> Decided:
    """True and false: 1 and 0."""
    moments = seen.moments
    if moments.constant:
        return _left_out(column, "flags", moments.count, moments.missing_share, moments.mean)
    decision = Decision(
        column=column,
        holds="flags",
        becomes="flag",
        size=1,
        indicator=moments.missing > 0,
        mean=moments.mean,
        spread=moments.spread,
        missing=moments.missing_share,
    )
    return Decided(decision, tuple(_label_notes(column, seen.labels)))


def decide_text(path: object, column: str, seen: TextStatistics, declared: bool) -> Decided:
    """A column for each category, or buckets; text is refused. declared: the user says that these are categories."""
    if not declared:
        refuse_text(path, column, seen)
    if len(seen.counts) <= 1:
        return _left_out(column, "categories", seen.known, seen.missing_share)
    notes = _label_notes(column, seen.labels)
    small = len(seen.counts) <= ONE_HOT_MOST
    if not small:
        many = f"{len(seen.counts):,}{' or more' * seen.overflow}"
        notes.append(
            f"column '{column}' has {many} different values: they share {BUCKETS} columns by a hash, so that some are "
            "not told apart"
        )
    decision = Decision(
        column=column,
        holds="categories",
        becomes="one-hot" if small else "hashed",
        size=len(seen.counts) if small else BUCKETS,
        indicator=seen.missing > 0,
        missing=seen.missing_share,
        categories=tuple(sorted(seen.counts)) if small else (),
    )
    return Decided(decision, tuple(notes))


def decide_learned(path: object, column: str, seen: TextStatistics) -> Decided:
    """A number for each value that training vertices have, by which a model finds the row that it learns for it."""
    if seen.overflow:
        raise UserError(
            f"column '{column}' of {path} has more than {len(seen.counts) - 1:,} different values, and a row is "
            "learned for so many at most: leave it out of --learned-columns, and its values share columns by a hash"
        )
    if len(seen.counts) <= 1:
        return _left_out(column, "categories", seen.known, seen.missing_share)
    values = tuple(sorted(seen.counts))
    decision = Decision(
        column=column, holds="categories", becomes="learned", size=1, missing=seen.missing_share, categories=values
    )
    return Decided(decision, tuple(_label_notes(column, seen.labels)))


def decide_vectors(column: str, width: int, seen: Moments) -> Decided:
    """Lists of numbers, which stay as they are."""
    return Decided(_unchanged(column, "vectors", width, seen))


def decide_raw(column: str, seen: Moments) -> Decided:
    """Numbers that the user wants as they are."""
    notes = (f"column '{column}' has the same value at every training vertex",) if seen.count and seen.constant else ()
    return Decided(_unchanged(column, "numbers", 1, seen), notes)


def note_large(names: Sequence[str], sizes: Sequence[float]) -> tuple[str, ...]:
    """A note where features that stay as they are are large. sizes: the root of the mean square of each column."""
    if not sizes or max(sizes) < LARGE:
        return ()
    large = max(range(len(sizes)), key=sizes.__getitem__)
    small = min(range(len(sizes)), key=sizes.__getitem__)
    beside = f", {names[small]} about {sizes[small]:.3g}" if len(sizes) > 1 else ""
    return (
        f"features are not scaled, and {names[large]} is about {sizes[large]:.3g}{beside}: models learn little from "
        "such features; standardise them, or give them as columns of a table, which weft standardises",
    )


def _unchanged(column: str, holds: Holds, size: int, seen: Moments) -> Decision:
    return Decision(
        column=column,
        holds=holds,
        becomes="unchanged",
        size=size,
        mean=seen.mean if seen.count else None,
        spread=seen.spread if seen.count else None,
        missing=seen.missing_share,
    )


def _left_out(column: str, holds: Holds, known: int, missing: float, mean: float | None = None) -> Decided:
    """A column of one value: only where it is missing can say something."""
    indicator = known > 0 and missing > 0
    why = "the same value at every training vertex" if known else "no value at any training vertex"
    kept = "only where it is missing is a feature" if indicator else "it is left out"
    decision = Decision(
        column=column,
        holds=holds,
        becomes="nothing",
        size=0,
        indicator=indicator,
        mean=mean if known else None,
        spread=0.0 if known and mean is not None else None,
        missing=missing,
        why=why,
    )
    return Decided(decision, (f"column '{column}' has {why}: {kept}",))


def refuse_text(path: object, column: str, seen: TextStatistics) -> None:
    """Refuses text, and numbers with mistakes among them; what may still be categories passes."""
    if not seen.known:
        return
    if seen.odd and seen.numbers >= MIXED_SHARE * seen.tried:
        raise UserError(
            f"column '{column}' of {path} holds numbers and text such as '{_short(seen.odd)}': leave a field empty "
            f"where its value is missing, or give --category-columns {column} if all values are names"
        )
    mean_characters, mean_words = seen.characters / seen.counted, seen.words / seen.counted
    many = len(seen.counts) > FEW_VALUES and seen.distinct_share > TEXT_SHARE
    if many or mean_characters > TEXT_CHARACTERS or mean_words > TEXT_WORDS:
        what = "a value of its own in most rows" if many else "long texts"
        raise UserError(
            f"column '{column}' of {path} is text ({what}, such as '{_short(next(iter(seen.counts)))}'): leave it out "
            f"with --ignore-columns {column}, say --id-column {column} or --label-column {column} if it is that, "
            f"--category-columns {column} if its values name categories, or turn it into numbers (an embedding, as a "
            "list column of a parquet file); dates are written 2024-01-31"
        )


def _label_notes(column: str, labels: LabelMatch) -> list[str]:
    if not labels.found:
        return []
    return [
        f"column '{column}' has one value for each class and no other: it looks like the label itself; if it is, leave "
        f"it out with --ignore-columns {column}"
    ]


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."
