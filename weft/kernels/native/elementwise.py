"""One-pass elementwise kernels."""

import torch
from torch import Tensor

from weft.kernels import _native, memory
from weft.kernels.native.pointers import UINT64, code, pointer, threads


def dropout_rows(x: Tensor, row_ids: Tensor, p: float, key: int, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = memory.empty_like(x)
    _native.dropout_rows(
        pointer(x), code(x), x.shape[0], x.shape[1], pointer(row_ids), p, key & UINT64, pointer(out), threads()
    )
    return out


def bias_relu_dropout_(x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    _native.bias_relu_dropout(
        pointer(x), code(x), x.shape[0], x.shape[1], pointer(bias), pointer(row_ids), p, key & UINT64, threads()
    )
    return x


def relu_dropout_backward(grad: Tensor, out: Tensor, p: float, into: Tensor | None = None) -> Tensor:
    if into is None:
        into = memory.empty_like(grad)
    _native.relu_dropout_backward(pointer(grad), pointer(out), code(grad), grad.numel(), p, pointer(into), threads())
    return into


def bias_elu_dropout(
    x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor | None = None
) -> Tensor:
    if out is None:
        out = memory.empty_like(x)
    _native.bias_elu_dropout(
        pointer(x), code(x), x.shape[0], x.shape[1], pointer(bias), pointer(row_ids), p, key & UINT64, pointer(out),
        threads(),
    )  # fmt: skip
    return out


def elu_dropout_backward(grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    into = memory.empty_like(grad)
    _native.elu_dropout_backward(
        pointer(grad), pointer(out), code(grad), grad.shape[0], grad.shape[1], pointer(row_ids), p, key & UINT64,
        pointer(into), threads(),
    )  # fmt: skip
    return into


def rowwise_head_dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    out = torch.empty(a.shape[0], heads, dtype=a.dtype)
    for part in _parts(a):
        torch.sum((a[part] * b[part]).view(-1, heads, a.shape[1] // heads), -1, out=out[part])
    return out


def _parts(x: Tensor, part_bytes: int = 1 << 20) -> list[slice]:
    """Slices of rows that stay in cache between the product and its sum."""
    rows = max(part_bytes // max(x.shape[1] * x.element_size(), 1), 64)
    return [slice(start, start + rows) for start in range(0, x.shape[0], rows)]


def head_dot(z: Tensor, att: Tensor, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty(z.shape[0], att.shape[0], dtype=att.dtype)
    _native.head_dot(pointer(z), code(z), z.shape[0], att.shape[0], att.shape[1], pointer(att), pointer(out), threads())
    return out


def head_dot_backward(z: Tensor, att: Tensor, grad: Tensor, d_z: Tensor | None, d_att: Tensor | None) -> None:
    _native.head_dot_backward(
        pointer(z), code(z), z.shape[0], att.shape[0], att.shape[1], pointer(att), pointer(grad), pointer(d_z),
        pointer(d_att), threads(),
    )  # fmt: skip
