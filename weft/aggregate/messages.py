"""Messages that a user's function computes: block by block without an autograd graph, and again in the backward pass.

The function sees one row per edge and may use parameters of its own. One call on a block without edges shows which
tensors it uses. These become inputs of the aggregation and get gradients like any other input. In the backward pass
each block uses detached copies of them, so that what computed them is differentiated once and not once per block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from weft import kernels
from weft.aggregate.blocks import Block
from weft.aggregate.reducers import ALL, BIASED_MAXIMUM, BIASED_SOFTMAX, Sides, State, Tensors, Traits
from weft.aggregate.topology import MessageScale
from weft.errors import UserError

MessageReduce = Literal["sum", "mean", "max", "softmax"]
CHUNK_BYTES = 16 << 20  # of one edge-wise tensor: a block's messages are computed in runs of destinations


class EdgeRows:
    """What a message function sees of some edges: one row per edge.

    >>> def message(edges: weft.EdgeRows) -> torch.Tensor:  # [E, D]
    ...     return torch.sigmoid(edges.src - edges.dst) * edges.src
    >>> graph = weft.open_part("synthetic:tiny")
    >>> with graph.training_pass(epoch=1) as view:
    ...     tuple(view.message(message, graph.shard.x, reduce="mean").shape)
    (300, 16)
    """

    def __init__(
        self, block: Block, span: slice, src: Tensor | None, dst: Tensor | None, dtype: torch.dtype, sides: Sides
    ) -> None:
        self._block, self._span, self._dtype, self._sides = block, span, dtype, sides
        self._src, self._dst = src, dst
        self.read: set[str] = set()

    @property
    def src(self) -> Tensor:
        """Rows of the sources, [E, D]."""
        self.read.add("src")
        assert self._src is not None
        return self._src

    @property
    def dst(self) -> Tensor:
        """Rows of the destinations, [E, D]; those that `message` was given as `own`, if it was."""
        self.read.add("dst")
        assert self._dst is not None
        return self._dst

    @property
    def src_ids(self) -> Tensor:
        """Global ids of the sources, int64 [E]."""
        return self._sides.src_ids[self._block.csr.indices[self._span].long()]

    @property
    def dst_ids(self) -> Tensor:
        """Global ids of the destinations, int64 [E]."""
        return self._sides.dst_ids[self._block.destinations[self._span]]

    @property
    def weight(self) -> Tensor | None:
        """The graph's edge weights, [E], where it has them."""
        return None if self._block.csr.weight is None else self._block.csr.weight[self._span]

    @property
    def relation(self) -> Tensor | None:
        """The kind of each edge, int64 [E], where the graph tells kinds apart."""
        return None if self._block.csr.relation is None else self._block.csr.relation[self._span].long()

    @property
    def features(self) -> Tensor | None:
        """The graph's edge features, [E, F], where it has them."""
        if self._block.csr.features is None:
            return None
        features = self._block.csr.features[self._span]
        return features.double() if self._dtype == torch.float64 else features


MessageFn = Callable[[EdgeRows], Any]


@dataclass(frozen=True)
class Signature:
    """What a message function was seen to use and to return."""

    reads_src: bool
    reads_dst: bool
    captured: Tensors  # tensors from outside that want gradients
    shapes: tuple[tuple[int, ...], ...]  # of each result, for one edge
    dtype: torch.dtype


class Messages:
    """fn's messages folded by sum, mean, max or softmax. dst = (own, *captured), src = (x,) where fn reads sources."""

    def __init__(
        self,
        fn: MessageFn,
        reduce: MessageReduce,
        signature: Signature,
        scale: MessageScale,
    ) -> None:
        self.fn, self.reduce, self.signature, self.mean_counts = fn, reduce, signature, scale.mean_counts
        self._intervals = scale.intervals if reduce in ("sum", "mean") else None
        reads = signature.reads_src
        self.traits = Traits(
            reads_sources=reads,
            unroundable={"max": BIASED_MAXIMUM, "softmax": BIASED_SOFTMAX}.get(reduce, "") if reads else "",
            tolerates_bf16=reduce != "max" or not reads,
        )
        self._seed = torch.empty(0)  # of the random numbers that fn draws, which are the same in the backward pass

    # -- forward ------------------------------------------------------------------------------------------------

    def start(self, dst: Tensors, src: Tensors, num_rows: int) -> State:
        self._seed = torch.randint(1 << 62, ())
        width = _width(self.signature.shapes[-1])
        make = dst[0].new_zeros if dst[0].dtype == self.signature.dtype else dst[0].to(self.signature.dtype).new_zeros
        out = make(num_rows, width)
        if self.reduce == "max":
            return out.fill_(-torch.inf), make(num_rows, width)
        if self.reduce == "softmax":
            heads = _width(self.signature.shapes[0])
            return make(num_rows, heads).fill_(-torch.inf), make(num_rows, heads), out
        return (out,)

    def absorb(self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors) -> None:
        with torch.no_grad(), _drawing(self._seed, sides):
            for edges, rows, _ in self._chunks(block, sides, dst, src):
                results = [_flat(result) for result in _tuple(self.fn(edges))]
                if self.reduce == "max":
                    _absorb_max(state, rows, results[0])
                elif self.reduce == "softmax":
                    _absorb_softmax(state, rows, *results)
                else:
                    kernels.scatter_add(state[0], rows, self._scaled_up(results[0], edges, rows))

    def finish(self, state: State, rows: slice = ALL) -> tuple[Tensor, Tensors]:
        assert rows == ALL, "messages are finished for all rows at once"
        if self.reduce == "max":
            best, count = state
            return best.masked_fill_(count == 0, 0.0), (self._seed, count)
        if self.reduce == "softmax":
            m, denominator, out = state
            kernels.attend_finish(denominator, out)
            return out, (self._seed, m, denominator)
        if self.reduce == "mean":
            state[0].div_(self._divisor(state[0]))
        return state[0], (self._seed,)

    # -- backward -----------------------------------------------------------------------------------------------

    def begin_backward(self, grad: Tensor, out: Tensor, kept: Tensors, dst: Tensors) -> State:
        self._seed, kept = kept[0], kept[1:]
        if self.reduce == "mean":
            grad = grad / self._divisor(grad)
        elif self.reduce == "max":
            grad = grad / kept[0].clamp(min=1)
        elif self.reduce == "softmax":
            kept = (*kept, kernels.rowwise_head_dot(grad, out, kept[0].shape[1]))
        gradients = [torch.zeros_like(tensor) for tensor in (dst if self.signature.reads_dst else dst[1:])]
        return grad, out, kept, gradients

    def backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        for tensor in into:
            tensor.zero_()
        with _drawing(self._seed, sides):
            self._backward_block(state, block, sides, dst, src, into)

    def _backward_block(
        self, state: State, block: Block, sides: Sides, dst: Tensors, src: Tensors, into: Tensors
    ) -> None:
        grad, out, kept, gradients = state
        for edges, rows, sources in self._chunks(block, sides, dst, src):
            stand_ins = [tensor.detach().requires_grad_() for tensor in dst[1:]]
            ends = [rows_ for rows_ in (edges._src, edges._dst) if rows_ is not None]
            with torch.enable_grad(), _Replaced(self.signature.captured, stand_ins):
                results = [_flat(result) for result in _tuple(self.fn(edges))]
            wanted = [*ends, *stand_ins]
            found = list(
                torch.autograd.grad(
                    results, wanted, self._message_grads(results, edges, rows, grad, out, kept), allow_unused=True
                )
            )
            if edges._src is not None:
                d_src = found.pop(0)
                if d_src is not None and into:
                    kernels.scatter_add(into[0], sources, d_src)
            if edges._dst is not None:
                d_dst = found.pop(0)
                if d_dst is not None:
                    kernels.scatter_add(gradients[0], rows, d_dst)
            for total, gradient in zip(gradients[len(gradients) - len(stand_ins) :], found, strict=True):
                if gradient is not None:
                    total.add_(gradient)

    def finish_backward(self, state: State) -> tuple[Tensor | None, ...]:
        gradients = state[3]
        return tuple(gradients) if self.signature.reads_dst else (None, *gradients)

    # -- inside -------------------------------------------------------------------------------------------------

    def _message_grads(
        self, results: list[Tensor], edges: EdgeRows, rows: Tensor, grad: Tensor, out: Tensor, kept: Tensors
    ) -> list[Tensor]:
        if self.reduce == "max":
            return [torch.where(results[0] == out[rows], grad[rows], 0.0)]
        if self.reduce != "softmax":
            return [self._scaled_up(grad[rows], edges, rows)]
        m, denominator, delta = kept
        logits, values = results
        heads = logits.shape[1]
        share = torch.exp(logits.detach() - m[rows]) / denominator[rows]
        per_head = grad[rows].view(-1, heads, values.shape[1] // heads)
        dots = (per_head * values.detach().view_as(per_head)).sum(-1)
        return [share * (dots - delta[rows]), (share[..., None] * per_head).flatten(1)]

    def _scaled_up(self, values: Tensor, edges: EdgeRows, rows: Tensor) -> Tensor:
        """Rows of edges, each times the in-edges that its edge stands for, where edges were drawn by weight."""
        if self._intervals is None:
            return values
        weight = edges._block.csr.weight
        assert weight is not None, "edges that were drawn by weight have weights"
        counts = (self._intervals[rows] / weight[edges._span]).clamp(min=1.0)
        return values * counts.to(values.dtype)[:, None]

    def _divisor(self, like: Tensor) -> Tensor:
        return self.mean_counts.clamp(min=1).to(like.dtype)[:, None]

    def _chunks(
        self, block: Block, sides: Sides, dst: Tensors, src: Tensors
    ) -> Iterator[tuple[EdgeRows, Tensor, Tensor]]:
        """Edges in runs, with the numbers of their rows (destinations, sources); the rows that fn sees are leaves."""
        csr, x = block.csr, dst[0]
        if csr.weight is not None and csr.weight.dtype != x.dtype and x.dtype == torch.float64:
            block = block.cast(x.dtype)
        widest = max(tensor.shape[1] for tensor in (x, *src))
        limit = max(1, CHUNK_BYTES // max(1, widest * x.element_size()))
        for first in range(0, csr.num_edges, limit):
            span = slice(first, min(first + limit, csr.num_edges))
            rows, sources = block.destinations[span], csr.indices[span]
            at_src = kernels.gather(src[0], sources).requires_grad_() if src else None
            at_dst = kernels.gather(x, rows).requires_grad_() if self.signature.reads_dst else None
            yield EdgeRows(block, span, at_src, at_dst, x.dtype, sides), rows, sources


def inspect(fn: MessageFn, x: Tensor, own: Tensor, block: Block, reduce: str) -> Signature:
    """Calls fn on a block without edges and notes which rows and tensors it reads, and what it returns."""
    ends = [rows.new_zeros(0, rows.shape[1], requires_grad=True) for rows in (x, own)]
    block = block if block.csr.weight is None else block.cast(x.dtype)
    none = torch.empty(0, dtype=torch.int64, device=x.device)
    edges = EdgeRows(block, slice(0, 0), ends[0], ends[1], x.dtype, Sides(none, none))
    seen = _Seen(ends)
    try:
        with torch.enable_grad(), seen:
            results = _tuple(fn(edges))
    except (RuntimeError, IndexError, TypeError) as error:
        raise UserError(
            f"the message function failed on a block without edges ({error}): it must work row by row, on any number"
        ) from error
    if not all(isinstance(result, Tensor) for result in results) or len(results) != (2 if reduce == "softmax" else 1):
        wanted = "a pair (logits [E, H], values [E, H*D])" if reduce == "softmax" else "one tensor [E, ...]"
        raise UserError(f'with reduce="{reduce}" a message function returns {wanted}')
    _refuse_hidden(results, [*seen.captured, *ends])
    shapes = tuple(tuple(result.shape[1:]) for result in results)
    return Signature("src" in edges.read, "dst" in edges.read, tuple(seen.captured), shapes, results[-1].dtype)


@contextmanager
def _drawing(seed: Tensor, sides: Sides) -> Iterator[None]:
    """Random numbers that depend on the seed and the block alone."""
    if sides.src_ids.numel() == 0:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed) ^ int(sides.src_ids[0]))
        yield


class _Seen(TorchFunctionMode):
    """Collects the tensors from outside that functions are called with and that want gradients."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self._made = list(given)  # kept alive, so that no id is used twice
        self._known = {id(tensor) for tensor in given}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_flatten((args, kwargs or {}))[0]:
            if isinstance(value, Tensor) and id(value) not in self._known:
                self._known.add(id(value))
                self._made.append(value)
                with torch._C.DisableTorchFunction():
                    if value.requires_grad:
                        self.captured.append(value)
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor) and id(value) not in self._known:
                self._known.add(id(value))
                self._made.append(value)
        return result


class _Replaced(TorchFunctionMode):
    """Replaces some tensors by others wherever functions are called with them."""

    def __init__(self, tensors: Tensors, stand_ins: list[Tensor]) -> None:
        super().__init__()
        self._stand_ins = {id(tensor): other for tensor, other in zip(tensors, stand_ins, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda value: self._stand_ins.get(id(value), value), (args, kwargs or {}))
        return func(*args, **kwargs)


def _refuse_hidden(results: tuple[Tensor, ...], known: list[Tensor]) -> None:
    """Refuses results that depend on parameters which no call was seen to take (in autograd functions)."""
    behind = [*known]
    behind += [leaf for tensor in known if tensor.grad_fn is not None for leaf in _leaves([tensor])]
    ids = {id(tensor) for tensor in behind}
    if any(id(leaf) not in ids for leaf in _leaves(results)):
        raise UserError(
            "the message function uses parameters inside an autograd function of its own, where they cannot be "
            "followed: call it on tensors made from them, for example parameter * 1"
        )


def _leaves(results: Sequence[Tensor]) -> list[Tensor]:
    leaves, visited = [], set()
    nodes = [result.grad_fn for result in results if result.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        nodes += [following for following, _ in node.next_functions if following is not None]
    return leaves


def _absorb_max(state: Tensors, rows: Tensor, messages: Tensor) -> None:
    best, count = state
    index = rows[:, None].expand_as(messages)
    largest = torch.full_like(best, -torch.inf).scatter_reduce_(0, index, messages, "amax")
    tied = (messages == largest[rows]).to(count.dtype)
    ties = torch.zeros_like(count).scatter_add_(0, index, tied)
    count.copy_(torch.where(largest > best, ties, torch.where(largest == best, count + ties, count)))
    torch.maximum(best, largest, out=best)


def _absorb_softmax(state: Tensors, rows: Tensor, logits: Tensor, values: Tensor) -> None:
    m, denominator, out = state
    heads = logits.shape[1]
    largest = m.scatter_reduce(0, rows[:, None].expand_as(logits), logits, "amax")
    shrink = torch.exp(torch.where(torch.isinf(largest), 0.0, m - largest))
    share = torch.exp(logits - largest[rows])
    m.copy_(largest)
    denominator.mul_(shrink)
    kernels.scatter_add(denominator, rows, share)
    width = values.shape[1] // heads
    out.view(-1, heads, width).mul_(shrink[..., None])
    kernels.scatter_add(out, rows, (share[..., None] * values.view(-1, heads, width)).flatten(1))


def _tuple(results: Any) -> tuple[Tensor, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _flat(result: Tensor) -> Tensor:
    return result.flatten(1) if result.dim() > 2 else result.unsqueeze(1) if result.dim() == 1 else result


def _width(shape: tuple[int, ...]) -> int:
    width = 1
    for size in shape:
        width *= size
    return width
