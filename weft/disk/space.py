"""Room on disks and in memory: reserved before a file is mapped, and one sentence where there is none."""

import errno
import os
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.errors import UserError

_PIECE_BYTES = 1 << 22
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file may not be so large here (see ulimit -f)",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.EIO: "the disk fails (input/output error)",
    errno.EMFILE: "too many files are open (see ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "a link leads to itself",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.ESTALE: "the network file system has lost it",
}
_MANY = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How libraries that are not written in Python quote the system: arrow, safetensors.
_QUOTED = re.compile(r"(?:\[errno |os error |code: )(\d+)", re.IGNORECASE)


@contextmanager
def writing(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Turns errors of the system into a UserError that names `path`, which the block writes."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        known = explained(error, path, needed_bytes)
        if known is None:
            raise
        raise known from error


def sentence_for(error: BaseException) -> UserError | None:
    """What a process that ends by this error should say, where it is no mistake of the program's."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        return UserError(f"memory ran out{reason}: use less of it, or a machine with more")
    if _code(error) in (*_FULL, *_MANY, errno.EROFS) or getattr(error, "filename", None) is not None:
        return explained(error)
    return None


def explained(error: BaseException, path: Path | None = None, needed_bytes: int = 0) -> UserError | None:
    """A sentence for an error of the system about disks and files; None for any other error."""
    code = _code(error)
    if code not in _REASONS:
        return None
    filename = getattr(error, "filename", None)
    where = path or (Path(os.fsdecode(filename)) if isinstance(filename, str | bytes) else None)
    at = "" if where is None else f" at {where}"
    if code in _MANY:
        return UserError(f"{_REASONS[code]}{at}: raise the limit, then start again")
    if code not in _FULL:
        return UserError(f"{_REASONS[code]}{at}: mend that, or choose another place")
    free = None if where is None else free_bytes(where)
    have = [f"{size(needed_bytes)} needed"] * bool(needed_bytes) + ([] if free is None else [f"{size(free)} free"])
    amounts = f" ({', '.join(have)})" if have else ""
    return UserError(f"{_REASONS[code]}{at}{amounts}: free some space or choose another place, then start again")


def _code(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
        text = str(error)
        if "requested and" in text and "written" in text:  # numpy's tofile, which does not say why
            return errno.ENOSPC
        found = _QUOTED.search(text)
        return int(found[1]) if found else 0
    # torch and the loader of modules keep the text alone.
    return errno.EMFILE if os.strerror(errno.EMFILE) in str(error) else 0


def free_bytes(path: Path) -> int | None:
    """Of the file system on which a path lies or would lie."""
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def reserve(descriptor: int, num_bytes: int, path: Path) -> None:
    """Gives an open file blocks for so many bytes, so that no write through a mapping finds the disk full.

    A sparse file that is mapped ends the process with SIGBUS then.
    """
    with writing(path, num_bytes):
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, num_bytes)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        zeros = bytes(min(_PIECE_BYTES, num_bytes))
        for begin in range(os.fstat(descriptor).st_size, num_bytes, _PIECE_BYTES):
            os.pwrite(descriptor, zeros[: num_bytes - begin], begin)


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def control_group_bytes() -> int | None:
    """The memory limit of this process's control group, which a container has; None: there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            value = int(Path(path).read_text())
            return value if value < 1 << 60 else None  # version 1 writes a huge number for no limit
    return None


def memory_bytes() -> int:
    """What this process may use at the most: the machine's memory, or less where a control group or ulimit says so."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    group = control_group_bytes()
    limits = [machine_memory_bytes(), *([] if group is None else [group])]
    return min(limits if soft == resource.RLIM_INFINITY else [*limits, soft])


def refuse_beyond_memory(num_bytes: int, what: str) -> None:
    """Before an allocation whose size a file names: the file may be wrong."""
    limit = memory_bytes()
    if num_bytes > limit:
        raise UserError(f"{what} would take {size(num_bytes)} of memory, and there are {size(limit)}: make it smaller")


def size(num_bytes: float) -> str:
    """Bytes for a person: 512 B, 3.4 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
