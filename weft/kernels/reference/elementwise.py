"""Elementwise passes, in plain torch."""

import torch
from torch import Tensor

from weft.kernels.arguments import accumulator_dtype
from weft.kernels.reference.masks import keep_rows


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


def bias_elu_dropout(
    x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor | None = None
) -> Tensor:
    y = x.to(accumulator_dtype(x.dtype))
    y = torch.nn.functional.elu(y if bias is None else y + bias)
    if p > 0:
        assert row_ids is not None
        y = torch.where(keep_rows(row_ids, x.shape[1], p, key), y * (1.0 / (1.0 - p)), 0.0)
    return y.to(x.dtype) if out is None else out.copy_(y)


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


def rowwise_head_dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """[N, H*D] x [N, H*D] -> [N, H]."""
    return (a * b).view(a.shape[0], heads, a.shape[1] // heads).sum(-1)


def head_dot(z: Tensor, att: Tensor, out: Tensor | None = None) -> Tensor:
    """[M, H*D] x [H, D] -> [M, H]."""
    dots = (z.to(att.dtype).view(z.shape[0], *att.shape) * att).sum(-1)
    return dots if out is None else out.copy_(dots)


def head_dot_backward(z: Tensor, att: Tensor, grad: Tensor, d_z: Tensor | None, d_att: Tensor | None) -> None:
    """Adds into d_z [M, H*D] and d_att [H, D]."""
    if d_z is not None:
        d_z += (grad[:, :, None] * att).reshape(z.shape)
    if d_att is not None:
        d_att += torch.einsum("mh,mhd->hd", grad, z.to(att.dtype).view(z.shape[0], *att.shape))
