"""Temporary folders. Those of processes that died are removed when the next one is made."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from weft.disk.lock import hold, release, try_lock
from weft.disk.space import writing
from weft.errors import UserError

PREFIX, LOCK = "weft-", ".weft-lock"


@contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """A temporary folder of this process, `weft-WHAT-...`."""
    clear_scratch()
    path, lock = _locked_folder(what)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.__exit__(None, None, None)


def _locked_folder(what: str) -> tuple[Path, AbstractContextManager[None]]:
    while True:
        with writing(Path(tempfile.gettempdir())):
            path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-"))
        lock = hold(path / LOCK, path)
        try:
            lock.__enter__()
            return path, lock
        except UserError:
            if path.exists():
                raise
            # Another process took it for a leftover in the instant before it was locked, and removed it.


def clear_scratch() -> None:
    """Removes this user's folders of processes that are dead."""
    with suppress(OSError):
        for entry in list(os.scandir(tempfile.gettempdir())):
            mine = entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
            if not mine or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            lock = Path(entry.path) / LOCK
            descriptor = try_lock(lock)
            if descriptor is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                release(descriptor, lock)
