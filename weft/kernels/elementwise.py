"""One-pass elementwise kernels. Dropout is a function of (key, global id of the row, column), not a state."""

import torch
from torch import Tensor

from weft.kernels import memory, reference
from weft.kernels.checks import accumulator_dtype, check_rows, check_shape, check_state, require
from weft.kernels.native import code, native_for, pointer, threads

_UINT64 = 0xFFFFFFFFFFFFFFFF


def check_probability(p: float) -> None:
    require(0.0 <= p < 1.0, f"the dropout probability must be in [0, 1), but is {p}")


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
    native = native_for(x)
    if native is None:
        return reference.dropout_rows(x, row_ids, p, key, out)
    x, row_ids = x.contiguous(), row_ids.contiguous()
    if out is None:
        out = memory.empty_like(x)
    native.dropout_rows(
        pointer(x),
        code(x),
        x.shape[0],
        x.shape[1],
        pointer(row_ids),
        p,
        key & _UINT64,
        pointer(out),
        threads(),
    )
    return out


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
    native = native_for(x)
    if native is None:
        return reference.bias_relu_dropout_(x, bias, row_ids, p, key)
    native.bias_relu_dropout(
        pointer(x),
        code(x),
        x.shape[0],
        x.shape[1],
        pointer(bias),
        pointer(row_ids),
        p,
        key & _UINT64,
        threads(),
    )
    return x


def relu_dropout_backward(grad: Tensor, out: Tensor, p: float, into: Tensor | None = None) -> Tensor:
    """grad * (out > 0) / (1 - p): `out` itself says what was kept. `into` may be `grad`."""
    check_rows("grad", grad)
    check_probability(p)
    check_shape("out", out, tuple(grad.shape), grad.dtype)
    if into is not None:
        check_state("into", into, tuple(grad.shape), grad.dtype)
    native = native_for(grad)
    if native is None:
        return reference.relu_dropout_backward(grad, out, p, into)
    grad, out = grad.contiguous(), out.contiguous()
    if into is None:
        into = memory.empty_like(grad)
    native.relu_dropout_backward(pointer(grad), pointer(out), code(grad), grad.numel(), p, pointer(into), threads())
    return into


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
    out = memory.empty_like(x) if out is None else out
    check_state("out", out, tuple(x.shape), x.dtype)
    native = native_for(x)
    if native is None:
        return reference.bias_elu_dropout(x, bias, row_ids, p, key, out)
    x, row_ids = x.contiguous(), None if row_ids is None else row_ids.contiguous()
    native.bias_elu_dropout(
        pointer(x), code(x), x.shape[0], x.shape[1], pointer(bias), pointer(row_ids), p, key & _UINT64, pointer(out),
        threads(),
    )  # fmt: skip
    return out


def elu_dropout_backward(grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    """grad times dropout times elu's slope, which is 1 above 0 and the value plus 1 below."""
    check_rows("grad", grad)
    check_shape("out", out, tuple(grad.shape), grad.dtype)
    require(p == 0 or row_ids is not None, "dropout needs row_ids, the global ids of the rows")
    native = native_for(grad)
    if native is None:
        return reference.elu_dropout_backward(grad, out, row_ids, p, key)
    grad, out, row_ids = grad.contiguous(), out.contiguous(), None if row_ids is None else row_ids.contiguous()
    into = memory.empty_like(grad)
    native.elu_dropout_backward(
        pointer(grad), pointer(out), code(grad), grad.shape[0], grad.shape[1], pointer(row_ids), p, key & _UINT64,
        pointer(into), threads(),
    )  # fmt: skip
    return into


def rowwise_head_dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Per-head dot products of the rows of a [N, H*D] with those of b: [N, H]."""
    check_rows("a", a)
    check_shape("b", b, tuple(a.shape), a.dtype)
    out = torch.empty(a.shape[0], heads, dtype=a.dtype, device=a.device)
    for part in _parts(a):
        torch.sum((a[part] * b[part]).view(-1, heads, a.shape[1] // heads), -1, out=out[part])
    return out


def _parts(x: Tensor, part_bytes: int = 1 << 20) -> list[slice]:
    """Slices of rows that stay in cache between two passes over them."""
    rows = max(part_bytes // max(x.shape[1] * x.element_size(), 1), 64)
    return [slice(start, start + rows) for start in range(0, x.shape[0], rows)]


def head_dot(z: Tensor, att: Tensor, out: Tensor | None = None) -> Tensor:
    """Per-head dot product of every row with att: [M, H*D] x [H, D] -> [M, H] (GAT's logit terms)."""
    check_rows("z", z)
    shape = _heads(z, att)
    if out is not None:
        check_state("out", out, shape, att.dtype)
    native = native_for(z)
    if native is None:
        result = reference.head_dot(z, att)
        return result if out is None else out.copy_(result)
    z, att = z.contiguous(), att.contiguous()
    if out is None:
        out = torch.empty(shape, dtype=att.dtype)
    native.head_dot(pointer(z), code(z), z.shape[0], att.shape[0], att.shape[1], pointer(att), pointer(out), threads())
    return out


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
    native = native_for(z)
    if native is None:
        reference.head_dot_backward(z, att, grad, d_z, d_att)
        return
    z, att, grad = z.contiguous(), att.contiguous(), grad.contiguous()
    native.head_dot_backward(
        pointer(z),
        code(z),
        z.shape[0],
        att.shape[0],
        att.shape[1],
        pointer(att),
        pointer(grad),
        pointer(d_z),
        pointer(d_att),
        threads(),
    )


def _heads(z: Tensor, att: Tensor) -> tuple[int, int]:
    require(att.dim() == 2, f"att must be [heads, columns a head], but its shape is {tuple(att.shape)}")
    require(z.shape[1] == att.numel(), f"rows have {z.shape[1]} columns, but att has {tuple(att.shape)} of them")
    check_shape("att", att, tuple(att.shape), accumulator_dtype(z.dtype))
    return z.shape[0], att.shape[0]
