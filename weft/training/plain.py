"""Values as plain JSON: what runs write into their files."""

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The same of plain JSON values: numpy and torch become numbers, paths text, NaN and infinity null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as dotted keys and text, as --set takes them."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = "none" if value is None else str(value)
    return flat


def flat_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of an epoch's record but its own, those of a part as PART/NAME."""
    found: dict[str, float] = {}
    for name, value in record.items():
        entries = {f"{name}/{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
        for key, one in entries.items():
            if key != "epoch" and isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one):
                found[key] = float(one)
    return found
