"""Whether the native module is there, and whether it was built from the sources that lie beside this package.

A module built from other sources would be called with arguments that it does not expect, so it is not used. In an
installed wheel there are no sources, and nothing to compare.
"""

import hashlib
import importlib
import os
from pathlib import Path
from types import ModuleType

from weft.errors import UserError

_ROOT = Path(__file__).parents[2]


def source_hash(root: Path) -> str | None:
    """The hash that cmake/source_hash.cmake compiles in, of the sources below `root`; None where there are none."""
    if not (root / "src" / "module.cpp").exists():
        return None
    files = [f"src/{folder}{name}" for folder in ("", "kernels/") for name in os.listdir(root / "src" / folder)]
    names = [name for name in files if name.endswith((".h", ".cpp"))]
    listing = hashlib.sha256()
    for name in sorted([*names, "CMakeLists.txt"]):
        with open(f"{root}/{name}", "rb") as file:
            listing.update(f"{hashlib.sha256(file.read()).hexdigest()} {name}\n".encode())
    return listing.hexdigest()


def problem_with(module: ModuleType | ImportError, root: Path = _ROOT) -> str | None:
    """Why this native module cannot be used, as a sentence that says what to do; None: it can."""
    if isinstance(module, ModuleNotFoundError):
        return (
            "weft's native kernels are not built: "
            "build them with `pip install -e .` (needs a C++17 compiler with OpenMP)"
        )
    if isinstance(module, ImportError):
        return f"weft's native kernels cannot be loaded ({module}): build them again with `pip install -e .`"
    wanted = source_hash(root)
    if wanted is not None and getattr(module, "source_hash", None) != wanted:
        return (
            f"weft's native kernels were built from other sources than those in {root / 'src'}: "
            "build them again with `make setup` (or `pip install -e .`)"
        )
    return None


def _import() -> ModuleType | ImportError:
    try:
        return importlib.import_module("weft.kernels._native")
    except ImportError as error:
        return error


_found = _import()
problem: str | None = problem_with(_found)
native_available: bool = problem is None


def native_module(purpose: str) -> ModuleType:
    """The native module itself, for work on NumPy arrays that has no reference and so is no kernel of a backend."""
    if not isinstance(_found, ModuleType) or problem is not None:
        raise UserError(f"{purpose} needs native code, but {problem}")
    return _found


def native_module_isa() -> str:
    """Which instruction set the native kernels use here: avx512, avx2 or plain; "none" if there are none."""
    return str(_found.isa) if isinstance(_found, ModuleType) and native_available else "none"
