"""The two sides of a comparison: the backend, on the device of these tests, and the reference, on the CPU."""

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.kernels.graphs import Block
from weft import kernels
from weft.kernels import reference

DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

WITH_ONE_CUT = ("spmm", "max_absorb", "gat_absorb", "gatv2_absorb", "dot_absorb")
WITH_TWO = ("gat_backward", "gatv2_backward", "dot_backward")


def cutting(block: Block) -> Any:
    """weft.kernels with the rows of a block cut."""
    cut, cut_t = kernels.cut_rows(block.indptr), kernels.cut_rows(block.indptr_t)
    assert cut is not None and cut_t is not None
    found: dict[str, Callable[..., Any]] = {name: getattr(kernels, name) for name in kernels.__all__}
    found |= {name: partial(found[name], cut=cut) for name in WITH_ONE_CUT}
    found |= {name: partial(found[name], cut=cut, cut_t=cut_t) for name in WITH_TWO}
    return SimpleNamespace(**found | {"max_backward": partial(kernels.max_backward, cut_t=cut_t)})


def both(run: Callable[[Any, Block], Any], make: Callable[[], Block], cut: bool = False) -> tuple[Any, Any]:
    """What run(implementation, block) returns on both sides, each on its device."""
    with torch.device(DEVICE):
        block = make()
        ours = run(cutting(block) if cut else kernels, block)
    with torch.device("cpu"):
        theirs = run(reference, make())
    return ours, theirs


def close(ours: Any, theirs: Any, **tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a.cpu(), b, **tolerance)
        else:
            assert a == b
