"""Folders of memory-mappable arrays with a manifest that proves them whole.

A folder holds `NAME.npy` files and a `manifest.json` with each array's shape, dtype and sha256, any metadata of its
kind, and a digest of all that. It is written under a temporary name, flushed, and renamed: it exists whole or not at
all.
"""

import hashlib
import json
import mmap
import os
import shutil
import stat
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from weft.disk import Claim, open_file, read_json, reserve, writing
from weft.errors import UserError

FORMAT = 2
MANIFEST = "manifest.json"
STAMP = ".verified.json"  # beside a manifest: which files were verified, see weft.graph.verify
DIGEST = "manifest_sha256"
AGAIN = "make the folder again"
Array = np.ndarray[Any, np.dtype[Any]]


def sha256_of(path: Path) -> str:
    with open_file(path, AGAIN) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ArrayWriter:
    """Writes arrays into a folder of its own and, at the end, their manifest; use as a context manager."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.meta: dict[str, Any] = {}
        self.arrays: dict[str, dict[str, Any]] = {}  # shape, dtype and sha256 of each
        self._open: dict[str, Array] = {}

    def __enter__(self) -> "ArrayWriter":
        with writing(self.folder):
            self.folder.mkdir()
        return self

    def create(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """A writable array on disk, to be filled before the folder is closed."""
        file = self.folder / f"{name}.npy"
        self._open[name] = create_npy(file, shape, np.dtype(dtype))
        self.arrays[name] = {"shape": list(shape), "dtype": np.dtype(dtype).str}  # its sha256 when it is full
        return self._open[name]

    def add(self, name: str, array: Array) -> None:
        write_npy(self.folder / f"{name}.npy", array)
        self.arrays[name] = self._describe(name, array)

    def adopt(self, name: str) -> None:
        """Counts in a `NAME.npy` that was written into the folder by other hands, whole."""
        file = self.folder / f"{name}.npy"
        with file.open("rb") as handle:
            np.lib.format.read_magic(handle)
            shape, _, dtype = np.lib.format.read_array_header_1_0(handle)
        self.arrays[name] = {"shape": list(shape), "dtype": dtype.str, "sha256": sha256_of(file)}

    def _describe(self, name: str, array: Array) -> dict[str, Any]:
        digest = sha256_of(self.folder / f"{name}.npy")
        return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": digest}

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()

    def finish(self) -> None:
        with writing(self.folder):
            for name, array in self._open.items():
                if isinstance(array, np.memmap):
                    array.flush()
                self.arrays[name] = self._describe(name, array)
            manifest = {"weft": self.kind, "format": FORMAT, **self.meta, "arrays": self.arrays}
            manifest[DIGEST] = manifest_digest(json.loads(json.dumps(manifest)))
            (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
            for file in self.folder.iterdir():
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())


class FolderWriter(ArrayWriter):
    """The same for a folder that nobody may see half-written. On an exception nothing stays behind."""

    def __init__(self, path: Path, kind: str, overwrite: bool = False) -> None:
        self._claim = Claim(Path(path), (lambda found: check_own(found, kind)) if overwrite else None)
        super().__init__(self._claim.temporary, kind)

    @property
    def temporary(self) -> Path:
        """Where the folder is while it is being written."""
        return self.folder

    def __enter__(self) -> "FolderWriter":
        self._claim.__enter__()
        try:
            super().__enter__()
        except BaseException:
            self._claim.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        try:
            super().__exit__(kind, value, trace)
            if kind is None:
                self._open.clear()
                self._claim.publish()
        finally:
            self._claim.__exit__()


def create_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An npy file of zeros, mapped to be written. Its room is reserved: a full disk shows here, not as SIGBUS."""
    if 0 in shape:  # nothing to map
        write_npy(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    with writing(path), path.open("w+b") as file:
        write_header(file, shape, dtype)
        first = file.tell()
        file.flush()
        reserve(file.fileno(), first + dtype.itemsize * int(np.prod(shape, dtype=np.int64)), path)
        return np.memmap(file, dtype, "r+", first, shape)


def write_npy(path: Path, array: Array) -> None:
    """The bytes that numpy would save."""
    array = np.ascontiguousarray(array)
    with writing(path, array.nbytes), path.open("wb") as file:
        # Not the file itself: numpy would write to its descriptor, and not tell why that failed.
        np.lib.format.write_array(_Sink(file), array, allow_pickle=False)


class _Sink:
    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


# -- what may be replaced ---------------------------------------------------------------------------------------


def check_own(path: Path, kind: str) -> None:
    """Refuses a folder that is not weft's, of this kind, or in which lies anything that weft has not written."""
    if not path.is_dir() or path.is_symlink():
        raise UserError(f"{path} is no folder: it will not be overwritten")
    if not any(path.iterdir()):
        return
    if not (path / MANIFEST).exists():
        raise UserError(f"{path} is no {kind} folder of weft's: it will not be overwritten")
    try:
        foreign = _foreign(path, read_manifest(path, kind))
    except UserError as error:
        raise UserError(f"{error}; it will not be overwritten: remove it yourself if nothing in it is needed") from None
    if foreign is not None:
        raise UserError(
            f"{foreign} is not a file of weft's, and to overwrite {path} would remove it: move it elsewhere first"
        )


def _foreign(path: Path, manifest: Mapping[str, Any]) -> Path | None:
    """Something in a folder of weft's that its manifest does not name."""
    own = {MANIFEST, *(f"{name}.npy" for name in manifest["arrays"])}
    parts = {f"part-{part:04d}" for part in range(len(manifest.get("part_manifests", ())))}
    for entry in sorted(path.iterdir()):
        is_folder = stat.S_ISDIR(entry.lstat().st_mode)
        if not is_folder and (entry.name in own or entry.name.startswith(STAMP)):
            continue
        if not is_folder or entry.name not in parts:
            return entry
        found = _foreign(entry, read_manifest(entry, "part")) if any(entry.iterdir()) else None
        if found is not None:
            return found
    return None


def remove_own(path: Path, kind: str) -> None:
    """Removes a folder of weft's, if it is there."""
    if os.path.lexists(path):
        check_own(path, kind)
        shutil.rmtree(path)


# -- reading ----------------------------------------------------------------------------------------------------


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """sha256 of all that a manifest says but this."""
    content = {key: value for key, value in manifest.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder of this kind ("graph", "partition", ...)."""
    file = Path(path) / MANIFEST
    if not os.path.lexists(file):
        raise UserError(f"{path} is no {kind} folder: it has no {MANIFEST}")
    manifest = read_json(file, AGAIN)
    if not isinstance(manifest, dict) or manifest.get("weft") != kind:
        found = manifest.get("weft") if isinstance(manifest, dict) else None
        raise UserError(f"{path} is a {found or 'foreign'} folder, not a {kind} folder")
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path} has format {manifest.get('format')}, this weft reads format {FORMAT}: make it again")
    if manifest.get(DIGEST) != manifest_digest(manifest):
        raise UserError(f"{file} was altered (it does not have the digest that it names): {AGAIN}")
    _check_arrays(file, manifest.get("arrays"))
    return manifest


def _check_arrays(file: Path, arrays: object) -> None:
    try:
        assert isinstance(arrays, dict)
        for name, entry in arrays.items():
            assert name and "/" not in name and "\0" not in name and not name.startswith(".")
            assert isinstance(entry["sha256"], str) and isinstance(entry["dtype"], str)
            assert all(isinstance(length, int) and length >= 0 for length in entry["shape"])
    except (AssertionError, KeyError, TypeError):
        raise UserError(f"{file} is damaged (at 'arrays'): {AGAIN}") from None


def read_array(path: Path, manifest: Mapping[str, Any], name: str) -> Array:
    """One array, memory-mapped copy-on-write; its shape and dtype are checked (its bytes by weft.graph.verify)."""
    entry = manifest["arrays"].get(name)
    file = Path(path) / f"{name}.npy"
    if entry is None:
        raise UserError(f"{path} has no array '{name}'")
    array = map_npy(file, f"make {path} again", mapped=0 not in entry["shape"])
    if list(array.shape) != entry["shape"] or array.dtype.str != entry["dtype"]:
        raise UserError(f"{file} is {array.dtype} {array.shape}, its manifest says {entry['dtype']} {entry['shape']}")
    if isinstance(array, np.memmap):
        _mapped[array.ctypes.data] = array
    return array


def to_file(tensor: Tensor) -> Array:
    """A tensor as the array that is written; bfloat16, which numpy does not have, as int16 of the same bits."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def read_tensor(path: Path, manifest: Mapping[str, Any], name: str, bfloat16: bool = False) -> Tensor:
    """An array of numbers as `read_array` reads it. bfloat16: its int16 are the bits of bfloat16."""
    array = read_array(path, manifest, name)
    if array.dtype.kind not in "bif":
        raise UserError(f"{path / name}.npy holds {array.dtype}, which is no array of numbers: {AGAIN}")
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if bfloat16 else tensor


def map_npy(file: Path, advice: str, mapped: bool = True) -> Array:
    """An npy file, memory-mapped copy-on-write."""
    with open_file(file, advice):
        pass
    try:
        array = np.load(file, mmap_mode="c" if mapped else None, allow_pickle=False)
    except Exception as error:  # a header is parsed as Python, which fails in many ways
        raise UserError(
            f"{file} was altered or truncated, or is no plain npy file ({' '.join(str(error).split())[:200]}): {advice}"
        ) from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{file} is an archive, not a single array: {advice}")
    return array


_mapped: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by address


def drop_pages(address: int) -> None:
    """Lets the system take back the memory of a mapped array that begins there: read again, it comes from its file."""
    array = _mapped.get(address)
    if array is not None and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)
