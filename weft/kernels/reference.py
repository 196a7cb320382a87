"""Every kernel in plain torch: what the native ones are tested against, and the fallback without them.

Same names and signatures as the face (weft.kernels), which checks shapes and bounds before it calls either.
These write the E x D messages that the native kernels avoid; they are meant to be read, not to be fast.
"""

import torch
from torch import Tensor

Dropout = tuple[float, int, Tensor, Tensor]  # p, key, dst global ids int64 [N], src global ids int64 [M]

_GOLDEN = 0x9E3779B97F4A7C15
_SOURCE = 0xC2B2AE3D27D4EB4F
_LOW32 = 0xFFFFFFFF


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """bf16 rows are summed in float32; float32 and float64 in themselves."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def rows_of(indptr: Tensor) -> Tensor:
    """Destination row of every edge, int64 [E]."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1, device=indptr.device), indptr[1:] - indptr[:-1])


# ---- CSR ---------------------------------------------------------------------------------------------------


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


# ---- sums and maxima over in-edges -------------------------------------------------------------------------


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,  # [M, D]
    weight: Tensor | None = None,  # [E]
    row_scale: Tensor | None = None,  # [N]
    col_scale: Tensor | None = None,  # [M]
    out: Tensor | None = None,  # [N, D]
    accumulate: bool = False,
) -> Tensor:
    columns = indices.long()
    messages = x[columns].to(accumulator_dtype(x.dtype))
    if weight is not None:
        messages = messages * weight[:, None]
    if col_scale is not None:
        messages = messages * col_scale[columns][:, None]
    total = messages.new_zeros(indptr.numel() - 1, x.shape[1]).index_add_(0, rows_of(indptr), messages)
    if row_scale is not None:
        total = total * row_scale[:, None]
    if out is None:
        return total.to(x.dtype)
    if accumulate:
        total += out
    return out.copy_(total)


def max_absorb(indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, out: Tensor, count: Tensor) -> None:
    rows = rows_of(indptr)
    messages = x[indices.long()].to(out.dtype)
    if weight is not None:
        messages = messages * weight[:, None]
    index = rows[:, None].expand_as(messages)
    largest = out.clone().scatter_reduce_(0, index, messages, "amax", include_self=True)
    count.masked_fill_(largest > out, 0)
    out.copy_(largest)
    count.index_add_(0, rows, (messages == out[rows]).to(torch.int32))


def max_finish(out: Tensor, count: Tensor) -> None:
    out.masked_fill_(count == 0, 0.0)


def max_backward(
    indptr_t: Tensor,
    indices_t: Tensor,
    x: Tensor,  # [M, D]
    weight_t: Tensor | None,  # [E] in transposed order
    out: Tensor,  # [N, D]
    grad_share: Tensor,  # [N, D] = grad / count
    dx: Tensor,  # [M, D]
) -> None:
    sources, targets = rows_of(indptr_t), indices_t.long()
    messages = x[sources].to(out.dtype)
    share = grad_share[targets]
    if weight_t is not None:
        messages = messages * weight_t[:, None]
        share = share * weight_t[:, None]
    dx.index_add_(0, sources, torch.where(messages == out[targets], share, 0.0).to(dx.dtype))


def gather(x: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    rows = x[index.long()]
    return rows if out is None else out.copy_(rows)


def scatter_add(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    if out.dtype == torch.bfloat16:  # several rows may meet: round once, not after each
        return out.copy_(out.float().index_add_(0, index.long(), rows.float()))
    return out.index_add_(0, index.long(), rows.to(out.dtype))


# ---- counter-based randomness ------------------------------------------------------------------------------


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 seen as uint64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(value: Tensor) -> Tensor:
    """int64 seen as uint64, wrapping."""
    value = value + _signed(_GOLDEN)
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _keep(row_hash: Tensor, num_columns: int, p: float) -> Tensor:
    a, b = row_hash & _LOW32, _shift(row_hash, 32)
    columns = torch.arange(num_columns, device=row_hash.device)
    v = (a[:, None] + columns * 0x9E3779B9) & _LOW32
    v = ((v ^ (v >> 16)) * 0x85EBCA6B) & _LOW32
    v = ((v ^ (v >> 13)) * 0xC2B2AE35) & _LOW32
    v = v ^ (v >> 16) ^ b[:, None]
    return v >= int(p * 2**32)


def keep_rows(row_ids: Tensor, num_columns: int, p: float, key: int) -> Tensor:
    """Which elements dropout_rows keeps, bool [N, D]."""
    return _keep(splitmix64(row_ids * _signed(_GOLDEN) + _signed(key)), num_columns, p)


def keep_edges(indptr: Tensor, indices: Tensor, num_heads: int, dropout: Dropout) -> Tensor:
    """Which attention coefficients are kept, bool [E, H]."""
    p, key, dst_ids, src_ids = dropout
    row = splitmix64(dst_ids * _signed(_GOLDEN) + _signed(key))[rows_of(indptr)]
    return _keep(splitmix64(src_ids[indices.long()] * _signed(_SOURCE) + row), num_heads, p)


# ---- elementwise -------------------------------------------------------------------------------------------


def dropout_rows(x: Tensor, row_ids: Tensor, p: float, key: int, out: Tensor | None = None) -> Tensor:
    keep = keep_rows(row_ids, x.shape[1], p, key)
    kept = torch.where(keep, x.to(accumulator_dtype(x.dtype)) * (1.0 / (1.0 - p)), 0.0).to(x.dtype)
    return kept if out is None else out.copy_(kept)


def bias_relu_dropout_(x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    y = x.to(accumulator_dtype(x.dtype))
    if bias is not None:
        y = y + bias
    y = torch.relu(y)
    if p > 0:
        assert row_ids is not None
        y = torch.where(keep_rows(row_ids, x.shape[1], p, key), y * (1.0 / (1.0 - p)), 0.0)
    return x.copy_(y)


def bias_elu_dropout(x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor) -> Tensor:
    y = x.to(accumulator_dtype(x.dtype))
    y = torch.nn.functional.elu(y if bias is None else y + bias)
    if p > 0:
        assert row_ids is not None
        y = torch.where(keep_rows(row_ids, x.shape[1], p, key), y * (1.0 / (1.0 - p)), 0.0)
    return out.copy_(y)


def elu_dropout_backward(grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    into = grad.clone()
    if p > 0:
        assert row_ids is not None
        into = dropout_rows(grad, row_ids, p, key)
    return into.mul_(out.clamp(max=0).mul_(1 - p).add_(1))


def relu_dropout_backward(grad: Tensor, out: Tensor, p: float, into: Tensor | None = None) -> Tensor:
    scaled = grad.to(accumulator_dtype(grad.dtype)) * (1.0 / (1.0 - p))
    result = torch.where(out > 0, scaled, 0.0).to(grad.dtype)
    return result if into is None else into.copy_(result)


def head_dot(z: Tensor, att: Tensor) -> Tensor:
    """[M, H*D] x [H, D] -> [M, H]."""
    return (z.to(att.dtype).view(z.shape[0], *att.shape) * att).sum(-1)


def head_dot_backward(z: Tensor, att: Tensor, grad: Tensor, d_z: Tensor | None, d_att: Tensor | None) -> None:
    """Adds into d_z [M, H*D] and d_att [H, D]."""
    if d_z is not None:
        d_z += (grad[:, :, None] * att).reshape(z.shape)
    if d_att is not None:
        d_att += torch.einsum("mh,mhd->hd", grad, z.to(att.dtype).view(z.shape[0], *att.shape))
