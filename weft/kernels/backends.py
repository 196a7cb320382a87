"""Who runs a kernel: backends, registered for devices and looked up by the device and dtype of a tensor.

The reference function of a kernel (weft/kernels/reference) is its specification: name, signature, and what it computes
and returns. A backend has kernels of the same names and signatures for some types of device. The functions of
weft.kernels check their arguments, look the kernel up and call it:

    kernel(reference.spmm, x)(indptr, indices, x, weight, row_scale, col_scale, out, accumulate, cut)

The backend that was registered last comes first, the reference, which runs on every device, last. A backend that serves
a device but lacks a kernel is passed over with one warning that names both.

What a backend may rely on: shapes, dtypes and index bounds were checked; all tensors are on one device; those that are
read are contiguous, except the operands of `product` and `reduce_product`, and those that are written (`out`, states,
gradients) are contiguous rows. Where `out` is None, the kernel allocates its result.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from weft.kernels import reference

P = ParamSpec("P")
R = TypeVar("R")
Kernel = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Backend:
    """Kernels for some devices. One for CUDA that has a single kernel:

    register_backend(Backend("mine", devices=frozenset({"cuda"}), kernels={"spmm": my_spmm}))
    """

    name: str
    devices: frozenset[str] | None  # types of torch.device ("cpu", "cuda"); None: every one
    kernels: Mapping[str, Kernel]  # by the names of the reference functions
    dtypes: frozenset[torch.dtype] | None = None  # None: all that weft.kernels accepts
    edges_per_piece: int | None = None  # rows with more edges come with a `Cut`; None: no row does
    by_rows: bool = False  # calls on slices of rows are cheap and give the bits of one call on all rows
    problem: str | None = None  # why it cannot run on this machine: it is passed over, with this as the warning

    def serves(self, device: str, dtype: torch.dtype) -> bool:
        return (self.devices is None or device in self.devices) and (self.dtypes is None or dtype in self.dtypes)

    def lacks(self) -> list[str]:
        """The kernels that it does not have."""
        return sorted(set(reference.KERNELS) - set(self.kernels))


_backends: Sequence[Backend] = [Backend("reference", None, reference.KERNELS)]  # the one that is asked first is last
_kernels: dict[tuple[Kernel, torch.device, torch.dtype], Kernel] = {}  # what look-ups found
_first: dict[tuple[torch.device, torch.dtype], Backend] = {}
_warned: set[tuple[Backend, str]] = set()


def register_backend(backend: Backend) -> None:
    """From now on it is asked before those that were registered earlier."""
    if backend.name in [other.name for other in _backends]:
        raise ValueError(f"a backend named {backend.name} is registered already")
    for name, function in backend.kernels.items():
        if name not in reference.KERNELS:
            raise ValueError(f"backend {backend.name} has a kernel {name}, but weft has none of that name")
        has, wanted = _parameters(function), _parameters(reference.KERNELS[name])
        if has != wanted:
            raise ValueError(
                f"kernel {name} of backend {backend.name} takes {inspect.signature(function)}, but must take what the "
                f"reference takes: {inspect.signature(reference.KERNELS[name])}"
            )
    _use([*_backends, backend])


@contextmanager
def registered(backend: Backend) -> Iterator[Backend]:
    """A backend that is registered until the end of the block."""
    before = _backends
    register_backend(backend)
    try:
        yield backend
    finally:
        _use(before)


@contextmanager
def only(*names: str) -> Iterator[None]:
    """Until the end of the block, only these of the registered backends are asked, the first of them first."""
    before, by_name = _backends, {backend.name: backend for backend in _backends}
    for name in names:
        if name not in by_name:
            raise ValueError(f"no backend named {name} is registered")
    _use([by_name[name] for name in reversed(names)])
    try:
        yield
    finally:
        _use(before)


def backends() -> list[Backend]:
    """Those that are asked, in the order in which they are."""
    return list(reversed(_backends))


def backend_for(tensor: Tensor) -> Backend:
    """The first that serves such tensors and can run here, whichever kernels it has."""
    found = _first.get((tensor.device, tensor.dtype))
    if found is None:
        found = next(backend for backend in _serving(tensor) if backend.problem is None)
        _first[tensor.device, tensor.dtype] = found
    return found


def kernel(specification: Callable[P, R], tensor: Tensor) -> Callable[P, R]:
    """The kernel that a reference function specifies, for tensors such as this one."""
    found = _kernels.get((specification, tensor.device, tensor.dtype))
    return _find(specification, tensor) if found is None else found


def has_kernel(specification: Kernel, tensor: Tensor) -> bool:
    """Whether a backend other than the reference has this kernel for tensors such as this one."""
    return kernel(specification, tensor) is not specification


def _find(specification: Kernel, tensor: Tensor) -> Kernel:
    name, lacking = specification.__name__, []
    for backend in _serving(tensor):
        if backend.problem is not None:
            _warn_once(backend, "", backend.problem)
        elif name not in backend.kernels:
            lacking.append(backend)
        else:
            for other in lacking:
                _warn_once(other, name, f"backend {other.name} has no kernel {name}: backend {backend.name} runs it")
            found = _kernels[specification, tensor.device, tensor.dtype] = backend.kernels[name]
            return found
    raise ValueError(f"no backend has kernel {name} for {tensor.dtype} on {tensor.device}")


def _serving(tensor: Tensor) -> list[Backend]:
    return [backend for backend in reversed(_backends) if backend.serves(tensor.device.type, tensor.dtype)]


def _warn_once(backend: Backend, name: str, sentence: str) -> None:
    if (backend, name) not in _warned:
        _warned.add((backend, name))
        warnings.warn(sentence, RuntimeWarning, stacklevel=5)  # who called a function of weft.kernels, or its check


def _use(chosen: Sequence[Backend]) -> None:
    global _backends
    _backends = chosen
    _kernels.clear()
    _first.clear()


def _parameters(function: Kernel) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
