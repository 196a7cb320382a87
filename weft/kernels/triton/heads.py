"""Dot products of rows, head by head."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.launching import launch, sum_type, warps_for

PROGRAMS = 1024  # whose shares of the attention vector's gradient are added in their order


def head_dot(z: Tensor, att: Tensor, out: Tensor | None = None) -> Tensor:
    heads, columns = att.shape
    out = torch.empty(z.shape[0], heads, dtype=att.dtype, device=att.device) if out is None else out
    _dots(z, att, out, heads, columns, one_row=True)
    return out


def rowwise_head_dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    out = a.new_empty(a.shape[0], heads)
    _dots(a, b, out, heads, a.shape[1] // heads, one_row=False)
    return out


def _dots(a: Tensor, b: Tensor, out: Tensor, heads: int, columns: int, one_row: bool) -> None:
    block_r, block_d = _block(columns)
    launch(
        _dot_rows, (triton.cdiv(a.shape[0], block_r) * heads,), a, b, out, a.shape[0], columns,
        num_warps=warps_for(block_r * block_d), HEADS=heads, ONE_ROW=one_row, BLOCK_R=block_r, BLOCK_D=block_d,
        SUM=sum_type(a.dtype),
    )  # fmt: skip


def head_dot_backward(z: Tensor, att: Tensor, grad: Tensor, d_z: Tensor | None, d_att: Tensor | None) -> None:
    heads, columns = att.shape
    block_r, block_d = _block(columns)
    tiles = triton.cdiv(z.shape[0], block_r)
    programs = tiles if d_att is None else min(tiles, PROGRAMS)
    shares = None if d_att is None else torch.zeros(programs, heads * columns, dtype=att.dtype, device=att.device)
    launch(
        _dot_rows_backward, (programs * heads,), z, att, grad, d_z, shares, z.shape[0], tiles, programs, columns,
        num_warps=warps_for(block_r * block_d), HEADS=heads, BLOCK_R=block_r, BLOCK_D=block_d, SUM=sum_type(att.dtype),
    )  # fmt: skip
    if d_att is not None and shares is not None:
        d_att += shares.sum(0).view(d_att.shape)


def _block(columns: int) -> tuple[int, int]:
    block = int(triton.next_power_of_2(max(columns, 1)))
    return max(1, 2048 // block), block


@triton.jit(do_not_specialize=["num_rows"])
def _dot_rows(
    a, b, out, num_rows, width, HEADS: tl.constexpr, ONE_ROW: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    rows = tile.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)
    mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
    places = (rows * HEADS + head)[:, None] * width + columns[None, :]
    left = tl.load(a + places, mask=mask, other=0.0).to(SUM)
    if ONE_ROW:
        right = tl.load(b + head * width + columns, mask=columns < width, other=0.0).to(SUM)[None, :]
    else:
        right = tl.load(b + places, mask=mask, other=0.0).to(SUM)
    dots = tl.sum(left * right, axis=1)
    tl.store(out + rows * HEADS + head, dots.to(out.dtype.element_ty), mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows", "num_tiles", "num_programs"])
def _dot_rows_backward(
    z, att, grad, d_z, shares, num_rows, num_tiles, num_programs, width, HEADS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    columns = tl.arange(0, BLOCK_D)
    vector = tl.load(att + head * width + columns, mask=columns < width, other=0.0)
    total = tl.zeros([BLOCK_D], dtype=SUM)
    for turn in range(0, tl.cdiv(num_tiles - program, num_programs)):
        tile = program + turn * num_programs
        rows = tile.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
        places = (rows * HEADS + head)[:, None] * width + columns[None, :]
        g = tl.load(grad + rows * HEADS + head, mask=rows < num_rows, other=0.0)[:, None]
        if d_z is not None:
            tl.store(d_z + places, tl.load(d_z + places, mask=mask, other=0.0) + g * vector[None, :], mask=mask)
        if shares is not None:
            total += tl.sum(g * tl.load(z + places, mask=mask, other=0.0).to(SUM), axis=0)
    if shares is not None:
        tl.store(shares + (program * HEADS + head) * width + columns, total, mask=columns < width)
