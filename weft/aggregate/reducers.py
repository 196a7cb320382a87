"""Reducers: the monoids of aggregation, absorbed block by block in any order.

A reducer folds the messages of one edge block after another into a state, and knows the adjoint of that fold.
Schedules decide which block comes when; they see nothing but this protocol, so every reducer works under every
schedule. `dst` are tensors with one row per owned vertex, `src` tensors with one row per column of the block.

A reducer of one tensor of rows becomes a word for `graph.aggregate(reduce=...)` by `register_reducer`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.blocks import Block
from weft.errors import unknown
from weft.kernels import memory
from weft.plugins import load_plugins

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


@dataclass(frozen=True)
class Traits:
    """What schedules, formats and autograd want to know of a reducer."""

    linear: bool = False  # a sum with the blocks' coefficients: backward needs the gradient alone, `dst` is added to
    reads_sources: bool = True  # whether the backward pass needs the source rows again
    by_rows: bool = False  # whether `finish` may be called for some rows before others are final
    exact: tuple[int, ...] = ()  # source tensors whose rounding would bias what comes out
    unroundable: str = ""  # why no source tensor may travel as small integers; empty: they may
    tolerates_bf16: bool = True  # where they may not: whether bf16 is precise enough


class Reducer(Protocol):
    @property
    def traits(self) -> Traits: ...
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

    traits = Traits(linear=True, reads_sources=False, by_rows=True)

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> "Running":
        if dst:  # on top of what is there
            return Running(dst[0], started=True)
        return Running(memory.empty((num_rows, src[0].shape[1]), src[0].dtype, src[0].device), started=False)

    def absorb(self, state: "Running", block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        kernels.spmm(
            csr.indptr, csr.indices, src[0], csr.weight, block.row_scale, block.col_scale,
            out=state.total, accumulate=state.started, cut=block.cut,
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
        kernels.spmm(
            indptr, indices, state, block.transposed_weight, block.col_scale, block.row_scale, out=into[0],
            cut=block.transposed_cut,
        )  # fmt: skip

    def finish_backward(self, state: Tensor) -> Tensors:
        return (state,)


class Max:
    """Largest message per column; tied edges share the gradient evenly, vertices without in-edges get 0."""

    traits = Traits(by_rows=True, unroundable=BIASED_MAXIMUM, tolerates_bf16=False)

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        width = src[0].shape[1]
        best = torch.full((num_rows, width), -torch.inf, dtype=src[0].dtype, device=src[0].device)
        return best, torch.zeros(num_rows, width, dtype=torch.int32, device=src[0].device)

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        kernels.max_absorb(csr.indptr, csr.indices, src[0], csr.weight, state[0], state[1], block.cut)

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
        kernels.max_backward(
            indptr, indices, src[0], block.transposed_weight, out, grad_share, into[0], block.transposed_cut
        )

    def finish_backward(self, state: Tensors) -> Tensors:
        return ()


@dataclass(frozen=True)
class Attention:
    """A kind of attention: the two kernels that know its logits, and the three tensors that they take.

    `inputs` orders the kernels' tensors out of (dst, src). Their gradients come in the same order.
    """

    absorb: Callable[..., None]
    backward: Callable[..., None]
    inputs: Callable[[Tensors, Tensors], Tensors]
    values: int  # the source tensor whose rows are averaged
    traits: Traits


# logits leaky_relu(target_i + source_j); dst = (target [N, H],), src = (values [M, H*D], source [M, H])
GAT = Attention(
    kernels.gat_absorb,
    kernels.gat_backward,
    lambda dst, src: (dst[0], src[1], src[0]),
    values=0,
    traits=Traits(by_rows=True, exact=(1,)),
)
# logits att . leaky_relu(query_i + key_j), the values are the keys; dst = (query [N, H*D], att [H, D]), src = (key,)
GATV2 = Attention(
    kernels.gatv2_absorb,
    kernels.gatv2_backward,
    lambda dst, src: (dst[0], src[0], dst[1]),
    values=0,
    traits=Traits(by_rows=True, unroundable=f"the logits of GATv2 come from the rows themselves: {BIASED_SOFTMAX}"),
)
# logits scale * query_i . key_j; dst = (query [N, H*D],), src = (key [M, H*D], values [M, H*Dv])
DOT = Attention(
    kernels.dot_absorb,
    kernels.dot_backward,
    lambda dst, src: (dst[0], src[0], src[1]),
    values=1,
    traits=Traits(by_rows=True, exact=(0,)),
)


class _AttentionGradient(NamedTuple):
    out: Tensor  # gradient of what came out [N, H*D]
    delta: Tensor  # [N, H], its dot product with what came out
    softmax: Tensors  # final maximum and denominator [N, H]
    dst: Tensors  # gradients of the destinations' tensors, added up block by block


class Softmax:
    """Softmax over in-edges and weighted sum, online: per destination and head a maximum, a denominator, an output."""

    def __init__(self, kind: Attention, heads: int, factor: float, dropout: AttentionDropout | None) -> None:
        """`factor`: the slope or scale of the logits."""
        self.kind, self.heads, self.factor, self.dropout = kind, heads, factor, dropout
        self.traits = kind.traits

    def _mask(self, sides: Sides) -> tuple[float, int, Tensor, Tensor] | None:
        return None if self.dropout is None else (*self.dropout, *sides)

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> Tensors:
        values = src[self.kind.values]

        def full(width: int, value: float) -> Tensor:
            return memory.empty((num_rows, width), values.dtype, values.device).fill_(value)

        return full(self.heads, -torch.inf), full(self.heads, 0.0), full(values.shape[1], 0.0)

    def absorb(self, state: Tensors, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        csr = block.csr
        inputs = self.kind.inputs(dst, src)
        self.kind.absorb(
            csr.indptr, csr.indices, *inputs, self.factor, *state, dropout=self._mask(sides), cut=block.cut
        )

    def finish(self, state: Tensors, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        m, denominator, out = state
        kernels.attend_finish(denominator[rows], out[rows])
        return out, (m, denominator)

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> _AttentionGradient:
        delta = kernels.rowwise_head_dot(grad, out, self.heads)
        return _AttentionGradient(grad, delta, kept, tuple(torch.zeros_like(tensor) for tensor in dst))

    def backward_block(
        self, state: _AttentionGradient, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        csr = block.csr
        for tensor in into:
            tensor.zero_()
        self.kind.backward(
            csr.indptr, csr.indices, *block.transposed, block.transposed_order, *self.kind.inputs(dst, src),
            self.factor, *state.softmax, state.delta, state.out, *self.kind.inputs(state.dst, into),
            dropout=self._mask(sides), cut=block.cut, cut_t=block.transposed_cut,
        )  # fmt: skip

    def finish_backward(self, state: _AttentionGradient) -> Tensors:
        return state.dst


# -- by name -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fold:
    """What a word for `graph.aggregate(reduce=...)` stands for."""

    make: Callable[[], Reducer]
    coefficients: Literal["sum", "mean", "max"]  # which coefficients the edges of its blocks carry
    traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", self.make().traits)


_folds: dict[str, Fold] = {}


def register_reducer(
    name: str, make: Callable[[], Reducer], coefficients: Literal["sum", "mean", "max"] = "max"
) -> None:
    """Makes `graph.aggregate(x, reduce=name)` fold with the reducer that make() returns.

    `coefficients`: "max", edges carry their own weights alone; "sum", those of a sampled minibatch are scaled up so
    that they stand for all in-edges; "mean", they are divided by their number too.
    """
    if name in _folds:
        raise ValueError(f"there is a reducer {name!r} already")
    _folds[name] = Fold(make, coefficients)


def fold_named(name: str) -> Fold:
    if name not in _folds:
        load_plugins()
    if name not in _folds:
        raise unknown("reducer", name, _folds)
    return _folds[name]


register_reducer("sum", Sum, "sum")
register_reducer("mean", Sum, "mean")
register_reducer("max", Max, "max")
