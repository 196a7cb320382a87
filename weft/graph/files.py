"""Folders of memory-mappable arrays with a manifest that proves them whole.

A folder holds `NAME.npy` files and a `manifest.json` with each array's shape, dtype and sha256 and any
metadata of its kind. It is written under a temporary name, flushed, and renamed: it exists whole or not at
all.
"""

import hashlib
import json
import mmap
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
Array = np.ndarray[Any, np.dtype[Any]]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FolderWriter:
    """Writes a folder of arrays; use as a context manager. On an exception nothing stays behind.

    `add` returns the array's sha256; `create` gives a memory-mapped array to fill in pieces.
    """

    def __init__(self, path: Path, kind: str, overwrite: bool = False) -> None:
        self.path, self.kind, self.overwrite = Path(path), kind, overwrite
        self.meta: dict[str, Any] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._open: dict[str, Array] = {}

    def __enter__(self) -> "FolderWriter":
        if self.path.exists() and not self.overwrite:
            raise UserError(f"{self.path} exists already: remove it, choose another --out, or pass --overwrite")
        if self.path.exists() and not (self.path / MANIFEST).exists() and any(self.path.iterdir()):
            raise UserError(f"{self.path} exists and is no {self.kind} folder: it will not be overwritten")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        return self

    def create(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """A writable array on disk, to be filled before the folder is closed. `name` may hold one '/'."""
        file = self.temporary / f"{name}.npy"
        file.parent.mkdir(exist_ok=True)
        if 0 in shape:  # nothing to map
            np.save(file, np.empty(shape, dtype))
            self._open[name] = np.empty(shape, dtype)
        else:
            self._open[name] = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        return self._open[name]

    def add(self, name: str, array: Array) -> None:
        file = self.temporary / f"{name}.npy"
        file.parent.mkdir(exist_ok=True)
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        self._arrays[name] = self._describe(name, array)

    def adopt(self, name: str) -> None:
        """Counts in a `NAME.npy` that was written into the temporary folder by other hands, whole."""
        file = self.temporary / f"{name}.npy"
        with file.open("rb") as handle:
            np.lib.format.read_magic(handle)
            shape, _, dtype = np.lib.format.read_array_header_1_0(handle)
        self._arrays[name] = {"shape": list(shape), "dtype": dtype.str, "sha256": sha256_of(file)}

    def _describe(self, name: str, array: Array) -> dict[str, Any]:
        file = self.temporary / f"{name}.npy"
        return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": sha256_of(file)}

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            return
        try:
            self._finish()
        except BaseException:  # a full disk, a key press: nothing stays then either
            shutil.rmtree(self.temporary, ignore_errors=True)
            raise

    def _finish(self) -> None:
        for name, array in self._open.items():
            if isinstance(array, np.memmap):
                array.flush()
            self._arrays[name] = self._describe(name, array)
        manifest = {"weft": self.kind, "format": FORMAT, **self.meta, "arrays": self._arrays}
        (self.temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for file in self.temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        if self.path.exists():
            shutil.rmtree(self.path)
        self.temporary.rename(self.path)


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder of this kind ("graph", "partition", ...)."""
    file = Path(path) / MANIFEST
    if not file.exists():
        raise UserError(f"{path} is no {kind} folder: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}): make the folder again") from None
    if not isinstance(manifest, dict) or manifest.get("weft") != kind:
        found = manifest.get("weft") if isinstance(manifest, dict) else None
        raise UserError(f"{path} is a {found or 'foreign'} folder, not a {kind} folder")
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path} has format {manifest.get('format')}, this weft reads format {FORMAT}: make it again")
    return manifest


def read_array(path: Path, manifest: Mapping[str, Any], name: str, verify: bool = False) -> Array:
    """One array, memory-mapped copy-on-write; its shape and dtype are always checked, its bytes if asked."""
    entry = manifest["arrays"].get(name)
    file = Path(path) / f"{name}.npy"
    if entry is None:
        raise UserError(f"{path} has no array '{name}'")
    if not file.exists():
        raise UserError(f"{file} is missing: make {path} again")
    if verify and sha256_of(file) != entry["sha256"]:
        raise UserError(f"{file} was altered or truncated (its sha256 is not the manifest's): make {path} again")
    try:
        empty = 0 in entry["shape"]
        array: Array = np.load(file, mmap_mode=None if empty else "c", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} was altered or truncated ({error}): make {path} again") from None
    if list(array.shape) != entry["shape"] or array.dtype.str != entry["dtype"]:
        raise UserError(f"{file} is {array.dtype} {array.shape}, its manifest says {entry['dtype']} {entry['shape']}")
    if isinstance(array, np.memmap):
        _mapped[array.ctypes.data] = array
    return array


_mapped: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by address


def drop_pages(address: int) -> None:
    """Lets the system take back the memory of a mapped array that begins there: read again, it comes from its file."""
    array = _mapped.get(address)
    if array is not None and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)
