"""Curves of a run as TensorBoard shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.training.events import EventFile


class Events:
    """TensorBoard's event files of a run. `purge_from`: the first of the epochs that are done again, if any are."""

    def __init__(self, folder: Path, purge_from: int | None = None) -> None:
        self._file = EventFile(folder, purge_from)

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds every number of an epoch's record."""
        scalars: dict[str, float] = {}
        for name, value in record.items():
            if name == "epoch":
                continue
            entries = value.items() if isinstance(value, Mapping) else ((None, value),)
            for key, number in entries:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    scalars[_tag(name) if key is None else f"{name}/{key}"] = float(number)
        self._file.add(int(record["epoch"]), scalars)

    def close(self) -> None:
        self._file.close()


def _tag(name: str) -> str:
    """TensorBoard groups by the part before the slash: val_accuracy and test_accuracy belong together."""
    split, _, metric = name.partition("_")
    return f"{metric}/{split}" if split in ("train", "val", "test") and metric else f"run/{name}"
