"""One-pass elementwise kernels over tiles of rows and columns; a row's hash is made once for its columns."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.device import keep, row_hash
from weft.kernels.triton.launching import as_signed, launch, sum_type

ROWS, COLUMNS = 16, 128  # of a tile


def dropout_rows(x: Tensor, row_ids: Tensor, p: float, key: int, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    _forward(x, None, row_ids, p, key, out, "none")
    return out


def bias_relu_dropout_(x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    _forward(x, bias, row_ids if p > 0 else None, p, key, x, "relu")
    return x


def bias_elu_dropout(
    x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor | None = None
) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    _forward(x, bias, row_ids if p > 0 else None, p, key, out, "elu")
    return out


def relu_dropout_backward(grad: Tensor, out: Tensor, p: float, into: Tensor | None = None) -> Tensor:
    into = torch.empty_like(grad) if into is None else into
    _backward(grad, out, None, p, 0, into, "relu")
    return into


def elu_dropout_backward(grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int) -> Tensor:
    into = torch.empty_like(grad)
    _backward(grad, out, row_ids if p > 0 else None, p, key, into, "elu")
    return into


def _forward(
    x: Tensor, bias: Tensor | None, row_ids: Tensor | None, p: float, key: int, out: Tensor, activation: str
) -> None:
    launch(
        _forward_kernel, _tiles(x), x, bias, row_ids, out, *x.shape, as_signed(key), int(p * 2**32),
        KEEP_SCALE=1.0 / (1.0 - p), ACTIVATION=activation, TERMS=_terms(x), BLOCK_R=ROWS, BLOCK_D=COLUMNS,
        SUM=sum_type(x.dtype),
    )  # fmt: skip


def _backward(
    grad: Tensor, out: Tensor, row_ids: Tensor | None, p: float, key: int, into: Tensor, activation: str
) -> None:
    launch(
        _backward_kernel, _tiles(grad), grad, out, row_ids, into, *grad.shape, as_signed(key), int(p * 2**32),
        KEEP=1 - p, KEEP_SCALE=1.0 / (1.0 - p), ACTIVATION=activation, BLOCK_R=ROWS, BLOCK_D=COLUMNS,
        SUM=sum_type(grad.dtype),
    )  # fmt: skip


def _tiles(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.shape[0], ROWS), triton.cdiv(x.shape[1], COLUMNS)


def _terms(x: Tensor) -> int:
    """How many terms of e^x - 1 give it to the last bit near 0."""
    return 18 if x.dtype == torch.float64 else 9


@triton.jit
def _exp_minus_1(x, TERMS: tl.constexpr):
    """e^x - 1 of x <= 0; a series near 0, where the difference would lose digits."""
    near = tl.where(x > -0.5, x, 0.0)
    series = tl.full(x.shape, 1.0, x.dtype)
    for step in tl.static_range(TERMS, 1, -1):
        series = 1.0 + series * near * (1.0 / step)
    return tl.where(x > -0.5, near * series, tl.exp(x) - 1.0)


@triton.jit(do_not_specialize=["num_rows", "key", "threshold"])
def _forward_kernel(
    x, bias, row_ids, out, num_rows, width, key, threshold, KEEP_SCALE: tl.constexpr, ACTIVATION: tl.constexpr,
    TERMS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    there, inside = rows < num_rows, columns < width
    mask = there[:, None] & inside[None, :]
    places = rows[:, None] * width + columns[None, :]
    y = tl.load(x + places, mask=mask, other=0.0).to(SUM)
    if bias is not None:
        y = y + tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    if ACTIVATION == "relu":
        y = tl.where(y <= 0, 0.0, y)  # so that NaN comes through
    if ACTIVATION == "elu":
        y = tl.where(y <= 0, _exp_minus_1(tl.minimum(y, 0.0), TERMS), y)
    if row_ids is not None:
        hashes = row_hash(tl.load(row_ids + rows, mask=there, other=0), key)
        y = tl.where(keep(hashes[:, None], columns[None, :], threshold), y * KEEP_SCALE, 0.0)
    tl.store(out + places, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "key", "threshold"])
def _backward_kernel(
    grad, out, row_ids, into, num_rows, width, key, threshold, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    there = rows < num_rows
    mask = there[:, None] & (columns < width)[None, :]
    places = rows[:, None] * width + columns[None, :]
    g = tl.load(grad + places, mask=mask, other=0.0).to(SUM)
    y = tl.load(out + places, mask=mask, other=0.0).to(SUM)
    if ACTIVATION == "relu":
        g = tl.where(y > 0, g * KEEP_SCALE, 0.0)
    else:
        if row_ids is not None:
            hashes = row_hash(tl.load(row_ids + rows, mask=there, other=0), key)
            g = tl.where(keep(hashes[:, None], columns[None, :], threshold), g * KEEP_SCALE, 0.0)
        g = g * (tl.minimum(y, 0.0) * KEEP + 1.0)
    tl.store(into + places, g.to(into.dtype.element_ty), mask=mask)
