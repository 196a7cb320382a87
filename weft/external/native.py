"""The native module, without which nothing here runs: work per edge is too much for anything else."""

from typing import Any

import torch

from weft.errors import UserError
from weft.kernels.native import native_for


def native() -> Any:
    module = native_for(torch.empty(0))
    if module is None:
        raise UserError("partitioning edge files needs the native module: build it with `pip install -e .`")
    return module
