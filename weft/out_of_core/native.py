"""The native module, without which nothing here runs: work per edge is too much for anything else."""

from types import ModuleType

from weft.kernels.build import native_module


def native() -> ModuleType:
    return native_module("partitioning edge files")
