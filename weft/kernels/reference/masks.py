"""Which elements and which attention coefficients dropout keeps: a hash of ids, column and key."""

import torch
from torch import Tensor

from weft.kernels.arguments import Dropout
from weft.kernels.hash import GOLDEN, MASK32, shift_right, signed, splitmix64
from weft.kernels.reference.csr import rows_of

_SOURCE = 0xC2B2AE3D27D4EB4F


def _keep(row_hash: Tensor, num_columns: int, p: float) -> Tensor:
    a, b = row_hash & MASK32, shift_right(row_hash, 32)
    columns = torch.arange(num_columns, device=row_hash.device)
    v = (a[:, None] + columns * 0x9E3779B9) & MASK32
    v = ((v ^ (v >> 16)) * 0x85EBCA6B) & MASK32
    v = ((v ^ (v >> 13)) * 0xC2B2AE35) & MASK32
    v = v ^ (v >> 16) ^ b[:, None]
    return v >= int(p * 2**32)


def keep_rows(row_ids: Tensor, num_columns: int, p: float, key: int) -> Tensor:
    """Which elements dropout_rows keeps, bool [N, D]."""
    return _keep(splitmix64(row_ids * signed(GOLDEN) + signed(key)), num_columns, p)


def keep_edges(indptr: Tensor, indices: Tensor, num_heads: int, dropout: Dropout) -> Tensor:
    """Which attention coefficients are kept, bool [E, H]."""
    p, key, dst_ids, src_ids = dropout
    return keep_pairs(dst_ids[rows_of(indptr)], src_ids[indices.long()], num_heads, p, key)


def keep_pairs(dst_ids: Tensor, src_ids: Tensor, num_heads: int, p: float, key: int) -> Tensor:
    """The same of edges whose ends have these global ids, [E] each."""
    row = splitmix64(dst_ids * signed(GOLDEN) + signed(key))
    return _keep(splitmix64(src_ids * signed(_SOURCE) + row), num_heads, p)
