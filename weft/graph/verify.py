"""Folders are verified once: every file's sha256, and whatever must hold of the arrays before native code sees them.

What was verified is noted in a stamp, so that the next opening need not read every byte: the manifest's digest, and for
each file its size, inode and times of change. A stamp lies beside the manifest or, where that cannot be written, in the
user's cache; where neither can be written, the next opening verifies again. It tells of files that were written to,
replaced or copied since; not of a disk that changes bytes by itself, nor of somebody who forges stamps.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.disk import open_file, parse_json
from weft.errors import UserError
from weft.graph.files import STAMP, manifest_digest
from weft.graph.progress import progress

STAMP_FORMAT = 1
PIECE_BYTES = 1 << 24
MAX_THREADS = 8
# A file that changes twice within a tick of its file system's clock has the same times after both.
TICK_NS, COARSE_TICK_NS = 100_000_000, 2_000_000_000
Facts = list[int]  # of a file: size, mtime_ns, inode, ctime_ns


def verify_arrays(
    path: Path,
    manifest: Mapping[str, Any],
    names: Iterable[str] | None = None,
    structure: Callable[[], None] | None = None,
    always: bool = False,
) -> None:
    """Raises a UserError unless the arrays of a folder are those that its manifest describes.

    names: of arrays; None: all. structure: checks of all arrays together, where bytes are not all that must be right.
    always: reads every byte, whatever a stamp says.
    """
    path, digest = Path(path), manifest_digest(manifest)
    known = {} if always else _read_stamp(path, digest)
    verified: dict[str, Facts] = dict(known.get("files", {}))
    sound = bool(known.get("structure"))
    wanted = manifest["arrays"] if names is None else names
    changed = [name for name in wanted if verified.get(name) != _facts(path / f"{name}.npy")]
    if changed:
        verified |= _hash_all(path, manifest, changed)
        sound = False
    if structure is not None and not sound:
        structure()
        sound = True
    elif not changed:
        return
    _write_stamp(path, {"weft": "stamp", "format": STAMP_FORMAT, "manifest": digest,
                        "structure": sound, "files": verified})  # fmt: skip


def _hash_all(path: Path, manifest: Mapping[str, Any], names: list[str]) -> dict[str, Facts]:
    advice = f"make {path} again, or copy it again from where it was made"
    total = 0
    for name in names:
        if name not in manifest["arrays"]:
            raise UserError(f"{path} has no array '{name}'")
        with open_file(path / f"{name}.npy", advice) as file:
            total += os.fstat(file.fileno()).st_size
    with progress(f"verifying {path.name}", total) as advance:

        def facts_of(name: str) -> Facts:
            return _hash(path / f"{name}.npy", manifest["arrays"][name]["sha256"], advice, advance)

        with ThreadPoolExecutor(min(MAX_THREADS, len(names), os.cpu_count() or 1)) as threads:
            return dict(zip(names, threads.map(facts_of, names), strict=True))


def _hash(file: Path, expected: str, advice: str, advance: Callable[[float], None]) -> Facts:
    digest = hashlib.sha256()
    with open_file(file, advice) as handle:
        facts = _facts_of(os.fstat(handle.fileno()))
        try:
            while piece := handle.read(PIECE_BYTES):
                digest.update(piece)
                advance(len(piece))
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}): {advice}") from None
    if digest.hexdigest() != expected:
        raise UserError(f"{file} was altered or truncated (its sha256 is not the manifest's): {advice}")
    return facts


def _facts(file: Path) -> Facts | None:
    try:
        return _facts_of(file.stat())
    except OSError:
        return None


def _facts_of(found: os.stat_result) -> Facts:
    return [found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns]


# -- stamps -----------------------------------------------------------------------------------------------------


def _places(path: Path) -> tuple[Path, Path]:
    """Where the stamp of a folder may lie: beside the manifest, or in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "stamps"
    return path / STAMP, cache / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def _read_stamp(path: Path, digest: str) -> dict[str, Any]:
    """What a stamp says of files that have not changed since it was written."""
    for place in _places(path):
        with suppress(OSError, UserError), open_file(place, "") as file:
            written = os.fstat(file.fileno()).st_mtime_ns
            stamp = parse_json(file.read(), str(place), "")
            if isinstance(stamp, dict) and (stamp.get("format"), stamp.get("manifest")) == (STAMP_FORMAT, digest):
                unchanged = {
                    name: facts
                    for name, facts in stamp.get("files", {}).items()
                    if isinstance(facts, list) and len(facts) == 4 and _older_than_stamp(facts, written)
                }
                return stamp | {"files": unchanged}
    return {}


def _older_than_stamp(facts: Facts, stamp_written_ns: int) -> bool:
    """Whether the file was last changed well before the stamp was written; both times are of file systems' clocks."""
    changed = facts[3]
    tick = COARSE_TICK_NS if changed % 1_000_000_000 == 0 else TICK_NS
    return changed + tick <= stamp_written_ns


def _write_stamp(path: Path, stamp: dict[str, Any]) -> None:
    for place in _places(path):
        with suppress(OSError):
            if place.name != STAMP:
                place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f"{place.name}.{os.getpid()}")
            try:
                temporary.write_text(json.dumps(stamp))
                temporary.replace(place)
            finally:
                temporary.unlink(missing_ok=True)
            return
