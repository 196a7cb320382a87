"""What a call of the native module needs: addresses, a dtype code, a thread count.

Plain integers cross the border: that costs 3 us a call, and tensors through DLPack 11. So arguments are checked before.
An address does not keep its tensor alive: a kernel's arguments do until it returns.
"""

import torch
from torch import Tensor

UINT64 = 0xFFFFFFFFFFFFFFFF  # keys are signed in Python, unsigned in C++

_DTYPE_CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


def code(tensor: Tensor) -> int:
    return _DTYPE_CODES[tensor.dtype]


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def threads() -> int:
    return torch.get_num_threads()
