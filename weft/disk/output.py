"""Outputs, folders or files, that appear complete or not at all, and have one writer at a time.

While PATH is being written, its folder holds

    .NAME.weft-lock       who writes (see weft.disk.lock)
    .NAME.weft-partial    what is being written
    .NAME.weft-old        what lay there before, for the instant between two renames where they cannot be one

The process that gets the lock knows that the other two are of a process that died, and removes them.
"""

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weft.disk.lock import hold, release, try_lock
from weft.disk.space import writing
from weft.errors import UserError

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_LOCK_NAME = re.compile(r"\.(.+)\.weft-lock")
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
Check = Callable[[Path], None]


class Claim:
    """The right to write PATH. Use as a context manager; without `publish` nothing of it stays.

    `replaces` checks what lies at PATH and raises a UserError where that may not be replaced; None: nothing may lie
    there. `option` is how the command line asks for a replacement.
    """

    def __init__(self, path: Path, replaces: Check | None = None, option: str = "--overwrite") -> None:
        self.path = Path(os.path.realpath(path))
        self.shown, self.replaces, self.option = path, replaces, option
        self.temporary = self._hidden("partial")

    def _hidden(self, ending: str) -> Path:
        return _hidden(self.path, ending)

    def __enter__(self) -> "Claim":
        if not self.path.name:
            raise UserError(f"{self.shown} cannot be replaced: choose another --out")
        self._check()
        with writing(self.shown):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = hold(self._hidden("lock"), self.shown)
        self._lock.__enter__()
        try:
            clear_leftovers(self.path.parent)
            with writing(self.shown):
                _recover(self.path)
            self._check()  # again: this time nobody else writes there
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def _check(self) -> None:
        if not os.path.lexists(self.path):
            return
        if self.replaces is None:
            raise UserError(f"{self.shown} exists already: remove it, choose another --out, or pass {self.option}")
        self.replaces(self.path)

    def publish(self) -> None:
        """Moves what was written to its place; what lies there is replaced only if it was to be."""
        with writing(self.shown):
            if self.replaces is None or not os.path.lexists(self.path):
                self._appear()
            else:
                self.replaces(self.path)
                _swap(self.temporary, self.path, self._hidden("old"))
            _sync_folder(self.path.parent)

    def _appear(self) -> None:
        try:
            _rename(self.temporary, self.path, _NOREPLACE)
        except FileExistsError:
            raise UserError(
                f"{self.shown} appeared while it was being written, and was left as it is: choose another --out"
            ) from None

    def __exit__(self, *_: object) -> None:
        try:
            remove(self.temporary)
        finally:
            self._lock.__exit__(None, None, None)


def check_replaceable(path: Path) -> None:
    """A file may be replaced by another one; a folder, a device or a pipe may not."""
    if not path.is_file():
        raise UserError(f"{path} is no file: it will not be overwritten")


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.weft-{ending}")


def clear_leftovers(folder: Path) -> None:
    """Removes what processes that are dead were writing into this folder."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            found = _LOCK_NAME.fullmatch(entry.name)
            lock = Path(entry.path)
            descriptor = None if found is None else try_lock(lock)
            if found is not None and descriptor is not None:
                with suppress(OSError):
                    _recover(lock.with_name(found[1]))
                release(descriptor, lock)


def _recover(path: Path) -> None:
    """After a writer that died: its unfinished work goes, and what lay there before is there again."""
    old = _hidden(path, "old")
    if os.path.lexists(old):
        if os.path.lexists(path):
            remove(old)
        else:
            old.rename(path)
    remove(_hidden(path, "partial"))


def remove(path: Path) -> None:
    """A file or a folder of weft's own, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _swap(new: Path, path: Path, old: Path) -> None:
    """The new in the place of the old, in one step where the system can do that."""
    try:
        _rename(new, path, _EXCHANGE)
        remove(new)  # what lay at `path` before
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        path.rename(old)
        new.rename(path)
        remove(old)


def _rename(source: Path, target: Path, flag: int) -> None:
    """renameat2: with _NOREPLACE nothing that has appeared at the target is replaced."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    code = errno.ENOSYS
    if call is not None:
        if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flag)) == 0:
            return
        code = ctypes.get_errno()
    if flag == _NOREPLACE and code in _UNSUPPORTED:  # an older system: a look, then the rename
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
        return
    raise OSError(code, os.strerror(code), str(target))


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
