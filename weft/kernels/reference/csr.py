"""Building and transposing CSR, in plain torch."""

import torch
from torch import Tensor


def rows_of(indptr: Tensor) -> Tensor:
    """Destination row of every edge, int64 [E]."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1, device=indptr.device), indptr[1:] - indptr[:-1])


def build_csr(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    by_src = torch.sort(src.long(), stable=True).indices
    order = by_src[torch.sort(dst.long()[by_src], stable=True).indices]
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64, device=src.device)
    indptr[1:] = torch.bincount(dst.long(), minlength=num_dst).cumsum(0)
    return indptr, src[order].to(torch.int32), order


def transpose_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    columns = indices.long()
    order = torch.sort(columns, stable=True).indices
    indptr_t = torch.zeros(num_cols + 1, dtype=torch.int64, device=indices.device)
    indptr_t[1:] = torch.bincount(columns, minlength=num_cols).cumsum(0)
    return indptr_t, rows_of(indptr)[order].to(torch.int32), order
