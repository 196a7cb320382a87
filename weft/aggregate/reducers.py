"""Reducers: the monoids of aggregation, absorbed block by block in any order.

A reducer folds the messages of one edge block after another into a state, and knows the adjoint of that fold.
Schedules decide which block comes when; they see nothing but this protocol, so every reducer works under every
schedule. `dst` are tensors with one row per owned vertex, `src` tensors with one row per column of the block.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.blocks import Block
from weft.kernels import memory

Tensors = tuple[Tensor, ...]
State = Any
ALL = slice(None)

BIASED_MAXIMUM = "a maximum of rounded rows is biased"
BIASED_SOFTMAX = "a softmax of rounded logits is biased"


class AttentionDropout(NamedTuple):
    """Coefficients dropped by a hash of the global ids at both ends of the edge."""

    p: float
    key: int


class Sides(NamedTuple):
    """Global ids at the two sides of a block, for what is keyed by them."""

    dst_ids: Tensor
    src_ids: Tensor


class Reducer(Protocol):
    reads_sources: bool  # whether the backward pass needs the source rows again
    exact: tuple[int, ...]  # source tensors whose rounding would bias what comes out
    unroundable: str  # why no source tensor may travel as small integers; empty: they may
    tolerates_bf16: bool

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> State: ...
    def absorb(self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None: ...
    def finish(self, state: State, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        """The aggregate, of which those rows are final now, and what the backward pass wants kept of the state."""
        ...

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> State: ...
    def backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        """Writes the gradient of this block's source rows to `into`."""
        ...

    def finish_backward(self, state: State) -> tuple[Tensor | None, ...]:
        """Gradients of the `dst` tensors."""
        ...


@dataclass
class Running:
    """A sum under way; until something was absorbed its memory holds nothing."""

    total: Tensor  # [N, D]
    started: bool


class Sum:
    """Linear with constant coefficients, which stand in the block: sum, mean, GCN's normalisation, edge weights."""

    reads_sources = False
    exact: tuple[int, ...] = ()
    unroundable, tolerates_bf16 = "", True

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> "Running":
        if dst:  # on top of what is there
            return Running(dst[0], started=True)
        return Running(memory.empty((num_rows, src[0].shape[1]), src[0].dtype, src[0].device), started=False)

    def absorb(self, state: "Running", block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        kernels.spmm(
            csr.indptr, csr.indices, src[0], csr.weight, block.row_scale, block.col_scale,
            out=state.total, accumulate=state.started,
        )  # fmt: skip
        state.started = True

    def finish(self, state: "Running", rows: slice = ALL) -> tuple[Tensor, Tensors]:
        return state.total, ()

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> Tensor:
        return grad

    def backward_block(
        self, state: Tensor, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        indptr, indices = block.transposed
        kernels.spmm(indptr, indices, state, block.transposed_weight, block.col_scale, block.row_scale, out=into[0])

    def finish_backward(self, state: Tensor) -> Tensors:
        return (state,)


class Max:
    """Largest message per column; tied edges share the gradient evenly, vertices without in-edges get 0."""

    reads_sources = True
    exact: tuple[int, ...] = ()
    unroundable, tolerates_bf16 = BIASED_MAXIMUM, False

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        width = src[0].shape[1]
        best = torch.full((num_rows, width), -torch.inf, dtype=src[0].dtype, device=src[0].device)
        return best, torch.zeros(num_rows, width, dtype=torch.int32, device=src[0].device)

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        kernels.max_absorb(csr.indptr, csr.indices, src[0], csr.weight, state[0], state[1])

    def finish(self, state: Tensors, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        kernels.max_finish(state[0].data[rows], state[1].data[rows])
        return state[0], (state[1],)

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> Tensors:
        return out, grad / kept[0].clamp(min=1).to(grad.dtype)

    def backward_block(
        self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        indptr, indices = block.transposed
        out, grad_share = state
        into[0].zero_()
        kernels.max_backward(indptr, indices, src[0], block.transposed_weight, out, grad_share, into[0])

    def finish_backward(self, state: Tensors) -> Tensors:
        return ()


class _Attention:
    """Online softmax over in-edges: per destination and head a running maximum m, denominator l, and output o."""

    reads_sources = True
    exact: tuple[int, ...] = ()
    unroundable, tolerates_bf16 = "", True

    def __init__(self, heads: int, slope: float, dropout: AttentionDropout | None) -> None:
        self.heads, self.slope, self.dropout = heads, slope, dropout

    def _mask(self, sides: Sides) -> tuple[float, int, Tensor, Tensor] | None:
        return None if self.dropout is None else (*self.dropout, *sides)

    def _empty(self, num_rows: int, values: Tensor) -> Tensors:
        def full(width: int, value: float) -> Tensor:
            return memory.empty((num_rows, width), values.dtype, values.device).fill_(value)

        return full(self.heads, -torch.inf), full(self.heads, 0.0), full(values.shape[1], 0.0)

    def finish(self, state: Tensors, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        m, denominator, out = state
        kernels.attend_finish(denominator[rows], out[rows])
        return out, (m, denominator)

    def _delta(self, grad: Tensor, out: Tensor) -> Tensor:
        return kernels.rowwise_head_dot(grad, out, self.heads)


class Attention(_Attention):
    """GAT: logits leaky_relu(target_i + source_j). dst = (target [N,H],), src = (values [M,H*D], source [M,H])."""

    exact: tuple[int, ...] = (1,)

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        return self._empty(num_rows, src[0])

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        m, total, o = state
        kernels.gat_absorb(
            csr.indptr, csr.indices, dst[0], src[1], src[0], self.slope, m, total, o, dropout=self._mask(sides)
        )

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> State:
        return grad, self._delta(grad, out), kept, torch.zeros_like(dst[0])

    def backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        grad, delta, (m, denominator), d_target = state
        csr = block.csr
        for tensor in into:
            tensor.zero_()
        kernels.gat_backward(
            csr.indptr, csr.indices, *block.transposed, block.transposed_order, dst[0], src[1], src[0], self.slope, m,
            denominator, delta, grad, d_target, into[1], into[0], dropout=self._mask(sides),
        )  # fmt: skip

    def finish_backward(self, state: State) -> Tensors:
        return (state[3],)


class DynamicAttention(_Attention):
    """GATv2: logits att . leaky_relu(query_i + key_j), values = keys. dst = (query, att [H,D]), src = (key,)."""

    unroundable = f"the logits of GATv2 come from the rows themselves: {BIASED_SOFTMAX}"

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        return self._empty(num_rows, src[0])

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        m, total, o = state
        kernels.gatv2_absorb(
            csr.indptr, csr.indices, dst[0], src[0], dst[1], self.slope, m, total, o, dropout=self._mask(sides)
        )

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> State:
        return grad, self._delta(grad, out), kept, torch.zeros_like(dst[0]), torch.zeros_like(dst[1])

    def backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        grad, delta, (m, denominator), d_query, d_att = state
        csr = block.csr
        into[0].zero_()
        kernels.gatv2_backward(
            csr.indptr, csr.indices, *block.transposed, block.transposed_order, dst[0], src[0], dst[1], self.slope, m,
            denominator, delta, grad, d_query, into[0], d_att, dropout=self._mask(sides),
        )  # fmt: skip

    def finish_backward(self, state: State) -> Tensors:
        return state[3], state[4]


class DotAttention(_Attention):
    """Transformer: logits scale * query_i . key_j. dst = (query [N,H*D],), src = (key [M,H*D], values [M,H*Dv])."""

    exact: tuple[int, ...] = (0,)

    def __init__(self, heads: int, scale: float, dropout: AttentionDropout | None) -> None:
        super().__init__(heads, 1.0, dropout)  # a slope of 1: logits as they are
        self.scale = scale

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        return self._empty(num_rows, src[1])

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        m, total, o = state
        kernels.dot_absorb(
            csr.indptr, csr.indices, dst[0], src[0], src[1], self.scale, m, total, o, dropout=self._mask(sides)
        )

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> State:
        return grad, self._delta(grad, out), kept, torch.zeros_like(dst[0])

    def backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        grad, delta, (m, denominator), d_query = state
        csr = block.csr
        for tensor in into:
            tensor.zero_()
        kernels.dot_backward(
            csr.indptr, csr.indices, *block.transposed, block.transposed_order, dst[0], src[0], src[1], self.scale, m,
            denominator, delta, grad, d_query, into[0], into[1], dropout=self._mask(sides),
        )  # fmt: skip

    def finish_backward(self, state: State) -> Tensors:
        return (state[3],)
