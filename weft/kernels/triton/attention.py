"""Fused attention of three kinds: an online softmax over in-edges, and its gradients, for one row and head a program.

The gradients take two passes. The first walks the transpose: it gathers the rows of destinations, writes the gradients
of sources, and leaves the gradient of each logit, [E, H]. The second sums those for the destinations.
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from weft.kernels.arguments import Cut, Dropout
from weft.kernels.triton import attention_device as device
from weft.kernels.triton.launching import Pieces, drop_of, launch, pieces_of, sum_type, tile_for
from weft.kernels.triton.rows import add_pieces, add_segments

ATT_PROGRAMS = 1024  # of each head, whose shares of the attention vector's gradient are added in their order


class _Inputs(NamedTuple):
    """Tensors that kernels read: of destinations, of sources, values, and GATv2's vector."""

    kind: int
    dst: Tensor
    src: Tensor
    values: Tensor
    att: Tensor | None
    factor: float  # slope or scale
    heads: int

    @property
    def value_columns(self) -> int:
        return self.values.shape[1] // self.heads

    @property
    def columns(self) -> int:
        """Of a head's query and key; 1 where a single term stands for them."""
        return self.src.shape[1] // self.heads

    def constants(self) -> dict[str, Any]:
        tile = tile_for(max(self.columns, self.value_columns))
        blocks = {
            "BLOCK_D": triton.next_power_of_2(self.columns),
            "BLOCK_V": triton.next_power_of_2(self.value_columns),
        }
        return {"HEADS": self.heads, "BLOCK_E": tile.edges, "num_warps": tile.warps, **blocks}


def attend_finish(l: Tensor, o: Tensor) -> None:
    rows, heads = l.shape
    columns = o.shape[1] // heads
    block = triton.next_power_of_2(max(columns, 1))
    items = max(1, 1024 // block)
    launch(
        device.finish, (triton.cdiv(rows * heads, items),), l, o, rows * heads, columns, BLOCK_R=items, BLOCK_D=block
    )


def gat_absorb(
    indptr: Tensor,
    indices: Tensor,
    dst_term: Tensor,
    src_term: Tensor,
    values: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs = _Inputs(device.GAT.value, dst_term, src_term, values, None, slope, m.shape[1])
    _absorb(indptr, indices, inputs, (m, l, o), dropout, pieces_of(cut))


def gat_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    dst_term: Tensor,
    src_term: Tensor,
    values: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,
    grad: Tensor,
    d_dst: Tensor,
    d_src: Tensor,
    d_values: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    inputs = _Inputs(device.GAT.value, dst_term, src_term, values, None, slope, m.shape[1])
    transposed = (indptr_t, indices_t, order_t)
    logits = _sources(transposed, inputs, (m, l, delta, grad), (d_src, d_values), dropout, pieces_of(cut_t))
    add_segments(indptr, logits, d_dst, pieces_of(cut))


def gatv2_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    att: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs = _Inputs(device.GATV2.value, query, key, key, att, slope, m.shape[1])
    _absorb(indptr, indices, inputs, (m, l, o), dropout, pieces_of(cut))


def gatv2_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    query: Tensor,
    key: Tensor,
    att: Tensor,
    slope: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,
    grad: Tensor,
    d_query: Tensor,
    d_key: Tensor,
    d_att: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    inputs = _Inputs(device.GATV2.value, query, key, key, att, slope, m.shape[1])
    transposed = (indptr_t, indices_t, order_t)
    logits = _sources(transposed, inputs, (m, l, delta, grad), (d_key, None), dropout, pieces_of(cut_t))
    _destinations(indptr, indices, inputs, logits, d_query, d_att, pieces_of(cut))


def dot_absorb(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    scale: float,
    m: Tensor,
    l: Tensor,
    o: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
) -> None:
    inputs = _Inputs(device.DOT.value, query, key, values, None, scale, m.shape[1])
    _absorb(indptr, indices, inputs, (m, l, o), dropout, pieces_of(cut))


def dot_backward(
    indptr: Tensor,
    indices: Tensor,
    indptr_t: Tensor,
    indices_t: Tensor,
    order_t: Tensor,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    scale: float,
    m: Tensor,
    l: Tensor,
    delta: Tensor,
    grad: Tensor,
    d_query: Tensor,
    d_key: Tensor,
    d_values: Tensor,
    dropout: Dropout | None = None,
    cut: Cut | None = None,
    cut_t: Cut | None = None,
) -> None:
    inputs = _Inputs(device.DOT.value, query, key, values, None, scale, m.shape[1])
    transposed = (indptr_t, indices_t, order_t)
    logits = _sources(transposed, inputs, (m, l, delta, grad), (d_key, d_values), dropout, pieces_of(cut_t))
    _destinations(indptr, indices, inputs, logits, d_query, None, pieces_of(cut))


def _absorb(
    indptr: Tensor,
    indices: Tensor,
    inputs: _Inputs,
    state: tuple[Tensor, Tensor, Tensor],
    dropout: Dropout | None,
    pieces: Pieces,
) -> None:
    (m, l, o), (drop, keep_scale) = state, drop_of(dropout)
    partial = tuple(pieces.partial(tensor.shape[1], tensor, tensor.dtype) for tensor in state)
    constants = inputs.constants()
    launch(
        device.absorb, (pieces.items(m.shape[0]) * inputs.heads,), indptr, indices, inputs.dst, inputs.src,
        inputs.values, inputs.att, m, l, o, *partial, *pieces.kernel_args(), *drop.kernel_args(), inputs.columns,
        inputs.value_columns, **constants, KEEP_SCALE=keep_scale, FACTOR=inputs.factor, KIND=inputs.kind,
        SUM=sum_type(m.dtype),
    )  # fmt: skip
    if pieces.number:
        launch(
            device.merge, (pieces.num_long * inputs.heads,), *partial, pieces.long_rows, pieces.first, m, l, o,
            inputs.value_columns, HEADS=inputs.heads, BLOCK_V=constants["BLOCK_V"],
        )  # fmt: skip


def _sources(
    transposed: tuple[Tensor, Tensor, Tensor],
    inputs: _Inputs,
    final: tuple[Tensor, Tensor, Tensor, Tensor],  # m, l, delta, grad
    gradients: tuple[Tensor, Tensor | None],  # of sources' terms or keys, and of values that are not the keys
    dropout: Dropout | None,
    pieces: Pieces,
) -> Tensor:
    """Adds to the gradients of sources; returns those of the logits' raw sums, [E, H], in forward order."""
    (indptr_t, indices_t, order_t), (drop, keep_scale) = transposed, drop_of(dropout)
    d_logits = final[0].new_empty(indices_t.numel(), inputs.heads)
    partial = tuple(None if d is None else pieces.partial(d.shape[1], d, d.dtype) for d in gradients)
    launch(
        device.sources, (pieces.items(inputs.src.shape[0]) * inputs.heads,), indptr_t, indices_t, order_t, inputs.dst,
        inputs.src, inputs.values, inputs.att, *final, d_logits, *gradients, *partial, *pieces.kernel_args(),
        *drop.kernel_args(), inputs.columns, inputs.value_columns, **inputs.constants(), KEEP_SCALE=keep_scale,
        FACTOR=inputs.factor, KIND=inputs.kind, SUM=sum_type(final[0].dtype),
    )  # fmt: skip
    for d, part in zip(gradients, partial, strict=True):
        if d is not None:
            add_pieces(pieces, part, d)
    return d_logits


def _destinations(
    indptr: Tensor,
    indices: Tensor,
    inputs: _Inputs,
    d_logits: Tensor,
    d_query: Tensor,
    d_att: Tensor | None,
    pieces: Pieces,
) -> None:
    """Adds to the gradients of queries, and of GATv2's vector: each program's share, then their sum."""
    items = pieces.items(d_query.shape[0])
    programs = items if d_att is None else min(items, ATT_PROGRAMS)
    partial = pieces.partial(d_query.shape[1], d_query, d_query.dtype)
    shares: Any = None
    if d_att is not None:
        shares = torch.zeros(programs, d_query.shape[1], dtype=d_att.dtype, device=d_att.device)
    launch(
        device.destinations, (programs * inputs.heads,), indptr, indices, inputs.dst, inputs.src, inputs.att, d_logits,
        d_query, shares, partial, *pieces.kernel_args(), items, programs, inputs.columns, **_without_values(inputs),
        FACTOR=inputs.factor, KIND=inputs.kind, SUM=sum_type(d_query.dtype),
    )  # fmt: skip
    add_pieces(pieces, partial, d_query)
    if d_att is not None:
        d_att += shares.sum(0).view(d_att.shape)


def _without_values(inputs: _Inputs) -> dict[str, Any]:
    tile = tile_for(inputs.columns)
    return {"HEADS": inputs.heads, "BLOCK_E": tile.edges, "BLOCK_D": tile.columns, "num_warps": tile.warps}
