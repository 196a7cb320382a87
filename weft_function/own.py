"""Imports a user's own module from the Python path or from the current folder.

The current folder is appended to the path for the duration of the import only, so that a file in it never shadows a
module of Python or of an installed package.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def import_own(module: str) -> ModuleType:
    with current_folder_last():
        return importlib.import_module(module)


def file_of(module: str) -> str | None:
    """The file of the module's top-level package, without running it; None if the package is not found."""
    top = module.partition(".")[0]
    with current_folder_last():
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return None
    if spec is None:
        return None
    files = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return next((os.path.realpath(file) for file in files if file), top)


@contextmanager
def current_folder_last() -> Iterator[None]:
    """In the block the current folder is searched after all others."""
    folder = os.getcwd()
    known = folder in sys.path or "" in sys.path
    if not known:
        sys.path.append(folder)
    try:
        yield
    finally:
        if not known:
            sys.path.remove(folder)
