"""The backend of the CPU: kernels of the C++ module (src/), each called with addresses of tensors."""

from types import ModuleType

from weft.kernels import build, reference
from weft.kernels.backends import Backend, Kernel


def _modules() -> tuple[ModuleType, ...]:
    """What imports the C++ module, and so cannot be imported where it was not built."""
    from weft.kernels.native import (
        attention,
        csr,
        elementwise,
        index,
        partition,
        products,
        quantise,
        rows,
        sampling,
    )

    return attention, csr, elementwise, index, partition, products, quantise, rows, sampling


def _kernels() -> dict[str, Kernel]:
    if build.problem is not None:
        return {}
    return {name: kernel for module in _modules() for name, kernel in vars(module).items() if name in reference.KERNELS}


_PROBLEM = None if build.problem is None else f"{build.problem}; until then slow torch versions run"
BACKEND = Backend("native", frozenset({"cpu"}), _kernels(), by_rows=True, problem=_PROBLEM)
