"""Exclusive locks on what is being written. The kernel releases a lock when the process that holds it ends.

A lock is flock's, on an open file: it does not matter whether the file stays after a crash. Processes that are started
by the holder do not inherit it (descriptors are closed on exec, and closed in forks), so that it ends with the holder
and with nobody else. On NFS, Linux maps flock to byte-range locks of the server, which hold among all hosts.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from weft.disk.space import writing
from weft.errors import UserError

PATIENCE_SECONDS = 0.5  # a search for leftovers of dead processes holds a lock for an instant
_POLL_SECONDS = 0.02
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_held: set[int] = set()


class InUse(UserError):
    """Another process writes there."""


@contextmanager
def hold(file: Path, what: Path) -> Iterator[None]:
    """Holds the lock `file` on `what`; the file is removed at the end. InUse names who holds it."""
    descriptor = _acquire(file, what)
    try:
        yield
    finally:
        release(descriptor, file)


def try_lock(file: Path) -> int | None:
    """A descriptor that holds the lock of a file that exists; None: its owner lives, or it is not there."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(descriptor, file):
                _held.add(descriptor)
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
    return None


def is_held(file: Path) -> bool:
    """Whether a process holds the lock of a file; asked without taking it for longer than that."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks does not say
    finally:
        os.close(descriptor)
    return False


def release(descriptor: int, file: Path) -> None:
    """Removes the file while the lock is held, so that nobody else's file is removed."""
    with suppress(OSError):
        if _is_file(descriptor, file):
            file.unlink()
    _held.discard(descriptor)
    with suppress(OSError):
        os.close(descriptor)


def _acquire(file: Path, what: Path) -> int:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        with writing(what):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if time.monotonic() > until:
                raise InUse(f"{what} is in use by {holder}: wait until it has ended, or choose another place") from None
            time.sleep(_POLL_SECONDS)
            continue
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            print(f"note: the file system of {what} has no locks: let one process at a time write it", file=sys.stderr)
        if _is_file(descriptor, file):
            _held.add(descriptor)
            _sign(descriptor)
            return descriptor
        os.close(descriptor)  # whoever held the lock has removed its file


def _is_file(descriptor: int, file: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        mine, there = os.fstat(descriptor), os.stat(file, follow_symlinks=False)
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _sign(descriptor: int) -> None:
    text = json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
    )
    with suppress(OSError):  # the lock holds without a name on a full disk, too
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(found['pid'])} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _close_in_fork() -> None:
    """A fork shares its parent's open files, and would keep their locks when the parent is dead."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_fork)
