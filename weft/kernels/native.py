"""The native module, if it was built, and what a call to it needs: pointers, a dtype code, a thread count.

Plain integers cross the border (3 us a call; tensors through DLPack cost 11), so the faces check first.
"""

import functools
import importlib
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

INTERFACE = 9  # raised, here and in src/module.cpp, when a native signature changes

_module: ModuleType | None
try:
    _module = importlib.import_module("weft.kernels._native")
except ImportError:
    _module = None
if getattr(_module, "interface", None) != INTERFACE:  # built from other sources than these
    _module = None

native_available: bool = _module is not None

_DTYPE_CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


def native_for(tensor: Tensor) -> Any:
    """The native module if it can work on this tensor, else None (then the reference does it)."""
    if tensor.device.type != "cpu":
        return None
    if _module is None:
        _warn_once()
    return _module


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "weft's native kernels are not built, so slow torch versions run instead; "
        "build them with `pip install -e .` (needs a C++17 compiler with OpenMP)",
        RuntimeWarning,
        stacklevel=3,
    )


def code(tensor: Tensor) -> int:
    return _DTYPE_CODES[tensor.dtype]


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def threads() -> int:
    return torch.get_num_threads()


def native_module_isa() -> str:
    """Which instruction set the native kernels use here: avx512, avx2 or plain; "none" if they are not built."""
    return "none" if _module is None else str(_module.isa)
