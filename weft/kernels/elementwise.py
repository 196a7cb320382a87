"""One-pass elementwise kernels. Dropout is a function of (key, global id of the row, column), not a state."""

import torch
from torch import Tensor

from weft.kernels import reference
from weft.kernels.arguments import accumulator_dtype
from weft.kernels.backends import kernel
from weft.kernels.checks import check_probability, check_rows, check_shape, check_state, require


def dropout_rows(
    x: Tensor,  # [N, D]
    row_ids: Tensor,  # int64 [N], global ids
    p: float,
    key: int,
    out: Tensor | None = None,
) -> Tensor:
    """x / (1 - p) where kept, else 0. Its backward is the same call on the gradient. `out` may be `x`."""
    check_rows("x", x)
    check_probability(p)
    check_shape("row_ids", row_ids, (x.shape[0],), torch.int64)
    if out is not None:
        check_state("out", out, tuple(x.shape), x.dtype)
    return kernel(reference.dropout_rows, x)(x.contiguous(), row_ids.contiguous(), p, key, out)


def bias_relu_dropout_(x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    """x = dropout(relu(x + bias)), in place and in one pass; row_ids (global ids) may be None if p is 0."""
    check_rows("x", x)
    check_state("x", x, tuple(x.shape), x.dtype)
    check_probability(p)
    if bias is not None:
        check_shape("bias", bias, (x.shape[1],), accumulator_dtype(x.dtype))
        bias = bias.contiguous()
    if row_ids is not None:
        check_shape("row_ids", row_ids, (x.shape[0],), torch.int64)
        row_ids = row_ids.contiguous()
    require(p == 0 or row_ids is not None, "dropout needs row_ids, the global ids of the rows")
    return kernel(reference.bias_relu_dropout_, x)(x, bias, row_ids, p, key)


def relu_dropout_backward(grad: Tensor, out: Tensor, p: float, into: Tensor | None = None) -> Tensor:
    """grad * (out > 0) / (1 - p): `out` itself says what was kept. `into` may be `grad`."""
    check_rows("grad", grad)
    check_probability(p)
    check_shape("out", out, tuple(grad.shape), grad.dtype)
    if into is not None:
        check_state("into", into, tuple(grad.shape), grad.dtype)
    return kernel(reference.relu_dropout_backward, grad)(grad.contiguous(), out.contiguous(), p, into)


def bias_elu_dropout(
    x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor | None = None
) -> Tensor:
    """dropout(elu(x + bias)) into a result of its own, or `out`; row_ids (global ids) may be None if p is 0."""
    check_rows("x", x)
    check_probability(p)
    require(p == 0 or row_ids is not None, "dropout needs row_ids, the global ids of the rows")
    if bias is not None:
        check_shape("bias", bias, (x.shape[1],), accumulator_dtype(x.dtype))
        bias = bias.contiguous()
    if out is not None:
        check_state("out", out, tuple(x.shape), x.dtype)
    row_ids = None if row_ids is None else row_ids.contiguous()
    return kernel(reference.bias_elu_dropout, x)(x.contiguous(), bias, row_ids, p, key, out)


def elu_dropout_backward(grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    """grad times dropout times elu's slope, which is 1 above 0 and the value plus 1 below."""
    check_rows("grad", grad)
    check_shape("out", out, tuple(grad.shape), grad.dtype)
    require(p == 0 or row_ids is not None, "dropout needs row_ids, the global ids of the rows")
    row_ids = None if row_ids is None else row_ids.contiguous()
    return kernel(reference.elu_dropout_backward, grad)(grad.contiguous(), out.contiguous(), row_ids, p, key)


def rowwise_head_dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Per-head dot products of the rows of a [N, H*D] with those of b: [N, H]."""
    check_rows("a", a)
    check_shape("b", b, tuple(a.shape), a.dtype)
    return kernel(reference.rowwise_head_dot, a)(a.contiguous(), b.contiguous(), heads)


def head_dot(z: Tensor, att: Tensor, out: Tensor | None = None) -> Tensor:
    """Per-head dot product of every row with att: [M, H*D] x [H, D] -> [M, H] (GAT's logit terms)."""
    check_rows("z", z)
    shape = _heads(z, att)
    if out is not None:
        check_state("out", out, shape, att.dtype)
    return kernel(reference.head_dot, z)(z.contiguous(), att.contiguous(), out)


def head_dot_backward(
    z: Tensor,  # [M, H*D]
    att: Tensor,  # [H, D]
    grad: Tensor,  # [M, H]
    d_z: Tensor | None,  # [M, H*D], added into, as d_att
    d_att: Tensor | None,  # [H, D]
) -> None:
    """d_z += grad * att; d_att += sum over rows of grad * z."""
    check_rows("z", z)
    shape = _heads(z, att)
    check_shape("grad", grad, shape, att.dtype)
    if d_z is not None:
        check_state("d_z", d_z, tuple(z.shape), att.dtype)
    if d_att is not None:
        check_state("d_att", d_att, tuple(att.shape), att.dtype)
    kernel(reference.head_dot_backward, z)(z.contiguous(), att.contiguous(), grad.contiguous(), d_z, d_att)


def _heads(z: Tensor, att: Tensor) -> tuple[int, int]:
    require(att.dim() == 2, f"att must be [heads, columns a head], but its shape is {tuple(att.shape)}")
    require(z.shape[1] == att.numel(), f"rows have {z.shape[1]} columns, but att has {tuple(att.shape)} of them")
    check_shape("att", att, tuple(att.shape), accumulator_dtype(z.dtype))
    return z.shape[0], att.shape[0]
