"""The backend of CUDA: kernels in Triton, which is imported when the first of them runs.

A GPU sums a row's in-edges in one program, several rows at a time; a row with many edges is cut into pieces (`Cut`),
whose sums a second launch adds in their order. So no result depends on which program ran first, and there are no
atomics. Launches go to the current device, which joining the workers sets.

Where torch's own operators are as good as a kernel can be, the reference is what runs: dense products, sorting. Kernels
for sampling and partitioning are not here: graphs are cut and minibatches drawn on the CPU.
"""

import functools
import importlib
from importlib import metadata
from importlib.util import find_spec

from weft.kernels import reference
from weft.kernels.backends import Backend, Kernel

OLDEST = (3, 6)  # the version that comes with torch 2.11; older ones were not tried
EDGES_PER_PIECE = 256

_MODULES: dict[str, tuple[str, ...]] = {
    "rows": ("spmm", "gather", "scatter_add"),
    "maxima": ("max_absorb", "max_backward"),
    "attention": (
        "attend_finish",
        "gat_absorb",
        "gat_backward",
        "gatv2_absorb",
        "gatv2_backward",
        "dot_absorb",
        "dot_backward",
    ),
    "elementwise": (
        "dropout_rows",
        "bias_relu_dropout_",
        "bias_elu_dropout",
        "relu_dropout_backward",
        "elu_dropout_backward",
    ),
    "heads": ("head_dot", "head_dot_backward", "rowwise_head_dot"),
    "quantise": ("pack", "unpack"),
}
_TORCHS_OWN = ("build_csr", "transpose_csr", "extremes", "max_finish", "product", "reduce_product")


def problem_with(version: str | None) -> str | None:
    """Why this version of Triton (None: there is none) cannot be used, as a sentence; None: it can."""
    oldest = ".".join(map(str, OLDEST))
    if version is None:
        return f"weft's kernels for GPUs need Triton {oldest} or newer, which is not installed: pip install triton"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return f"weft's kernels for GPUs need Triton {oldest} or newer, but {version} is installed: use a newer torch"
    return None


def installed_version() -> str | None:
    """Of Triton, without importing it."""
    if find_spec("triton") is None:
        return None
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:  # torch's nightly wheels bring it under another name
        return importlib.import_module("triton").__version__  # type: ignore[no-any-return]


def kernels() -> dict[str, Kernel]:
    found = {name: _on_first_call(module, name) for module, names in _MODULES.items() for name in names}
    return found | {name: reference.KERNELS[name] for name in _TORCHS_OWN}


def _on_first_call(module: str, name: str) -> Kernel:
    """A kernel whose module, and Triton with it, is imported when it is called."""

    @functools.wraps(reference.KERNELS[name])
    def run(*args: object, **named: object) -> object:
        return load(module, name)(*args, **named)

    return run


@functools.cache
def load(module: str, name: str) -> Kernel:
    found: Kernel = getattr(importlib.import_module(f"weft.kernels.triton.{module}"), name)
    return found


def modules() -> dict[str, tuple[str, ...]]:
    """The modules of this package that import Triton, and the kernels of each."""
    return dict(_MODULES)


_PROBLEM = problem_with(installed_version())
BACKEND = Backend(
    "triton",
    frozenset({"cuda"}),
    kernels(),
    edges_per_piece=EDGES_PER_PIECE,
    problem=None if _PROBLEM is None else f"{_PROBLEM}; until then slow torch versions run",
)
