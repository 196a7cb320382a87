"""Values out of files that may hold null, text or nothing where a number should be."""

from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """A finite number, or None for anything else: files may hold null, text or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def numbers(value: object) -> dict[str, float]:
    pairs = ((str(key), number(item)) for key, item in mapping(value).items())
    return {key: item for key, item in pairs if item is not None}
