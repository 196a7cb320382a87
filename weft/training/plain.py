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
