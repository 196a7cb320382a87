"""One process at a time writes a run folder; the next one clears what a process that died has left."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.disk import hold, is_held, writing
from weft.disk.output import clear_leftovers, remove

LOCK = ".weft-lock"


def is_free(path: Path) -> bool:
    """Whether a new run may use this folder: it is missing, or has only leftovers in it."""
    return not os.path.lexists(path) or (path.is_dir() and all(_is_leftover(entry.name) for entry in path.iterdir()))


def _is_leftover(name: str) -> bool:
    """Whether an entry is left of a run that ended before it had written its settings."""
    return name == LOCK or (name.startswith(".") and name.endswith(".partial"))


def is_written(path: Path) -> bool:
    """Whether a process trains the run in this folder now."""
    return is_held(path / LOCK)


@contextmanager
def hold_run(path: Path, made: bool = False) -> Iterator[None]:
    """Holds the lock of a run folder, which is made if it is missing; a folder made here that stays empty is removed.

    Readers need no lock. The process that leads a run holds it, and workers that it started end with it.
    """
    made = made or not os.path.lexists(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    try:
        with hold(path / LOCK, path):
            clear_leftovers(path)
            _clear_partial(path)
            yield
    finally:
        if made:
            with suppress(OSError):  # there is something in it
                path.rmdir()


def _clear_partial(path: Path) -> None:
    """Files of a run that were being written when their process died."""
    for folder in (path, path / "checkpoints"):
        with suppress(OSError):
            for entry in folder.glob(".*.partial"):
                remove(entry)
