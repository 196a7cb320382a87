"""What a layer sees of the graph: the rows that this worker owns, and verbs that reach across workers.

A layer written against `GraphView` does not know how many workers there are, which schedule runs or how rows look
on the wire: `aggregate`, `attend` and `message` are differentiable and mean the same under each of them.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate import schedules
from weft.aggregate.blocks import Block, by_relation, row_sums, with_self_loops
from weft.aggregate.noise import Noise
from weft.aggregate.reducers import Attention, AttentionDropout, DynamicAttention, Max, Reducer, Sides, Sum
from weft.aggregate.schedules import Edges
from weft.comm import Codec, Communicator, InFlight, build_route, exchange, raw, start_exchange
from weft.errors import UserError
from weft.graph.graph import EDGE_DATA
from weft.partition import Shard

Reduce = Literal["sum", "mean", "max"]
Weight = Literal["edge", "symmetric"] | Tensor | None
By = Literal["relation"] | None


class EdgeRows(NamedTuple):
    """What a message function sees: one row per edge."""

    src: Tensor  # [E, D] rows of the sources
    dst: Tensor  # [E, D] rows of the destinations
    weight: Tensor | None  # [E] the graph's edge weights
    relation: Tensor | None = None  # int64 [E] the kind of each edge
    features: Tensor | None = None  # [E, F]


class GraphView:
    """One worker's side of the graph: N owned rows, H halo rows that other workers own."""

    def __init__(self, shard: Shard, comm: Communicator | None = None, codec: Codec = raw) -> None:
        self.shard = shard
        self.comm = comm or Communicator.alone()
        assert self.comm.num_workers == shard.num_workers, "a shard belongs to a run of its own worker count"
        self.codec = codec
        self.noise = Noise(seed=0)
        self.constant: Tensor | None = None
        self._cached: dict[Any, Tensor] = {}
        self._forward_kind = "hidden_forward"
        self._edges: dict[Any, Edges] = {}
        self._route = build_route(self.comm, shard.halo_rows, shard.halo_counts, self.num_rows)
        self._route_home = self._route.transpose()

    # -- what is here ------------------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return self.shard.global_ids.numel()

    @property
    def num_halo(self) -> int:
        return self.shard.halo_ids.numel()

    @property
    def num_relations(self) -> int:
        """How many kinds of edges the graph has; 0: it does not tell edges apart."""
        return self.shard.num_relations

    @property
    def exchanges(self) -> bool:
        """Whether this run has other workers; then each takes part in every exchange, also with nothing to send."""
        return self.comm.num_workers > 1

    @property
    def global_ids(self) -> Tensor:
        return self.shard.global_ids

    @cached_property
    def in_degrees(self) -> Tensor:
        """Number of in-edges of each owned vertex over the whole graph, int64 [N]."""
        return self.shard.local.degrees() + self.shard.remote.degrees()

    @cached_property
    def local_sides(self) -> Sides:
        return Sides(self.shard.global_ids, self.shard.global_ids)

    @cached_property
    def remote_sides(self) -> Sides:
        return Sides(self.shard.global_ids, self.shard.halo_ids)

    # -- verbs -------------------------------------------------------------------------------------------------

    def aggregate(
        self, x: Tensor, reduce: Reduce = "sum", weight: Weight = None, into: Tensor | None = None, by: By = None
    ) -> Tensor:
        """Folds the in-neighbours' rows of x [N, D] into one row per owned vertex.

        `weight`: None, "edge" (the graph's weights; the mean then divides by their sum), "symmetric"
        (D^-1/2 (A + I) D^-1/2, as GCN wants it), or a constant tensor with one entry per edge of this shard, local
        edges first. With `into` (sum and mean only) the result is added there, in place. With by="relation" there is
        one aggregate for each of the graph's R relations, side by side: [N, R*D].
        """
        if self.constant is not None and x is self.constant and into is None and not isinstance(weight, Tensor):
            return self._aggregate_once(x, reduce, weight, by)
        if reduce not in ("sum", "mean", "max"):
            raise UserError(f"aggregate(reduce={reduce!r}) is not known: choose sum, mean or max")
        if by is not None:
            self._check_by(by, weight, into)
        edges = self._edges_for(reduce, weight, x.dtype, by)
        reducer: Reducer = Max() if reduce == "max" else Sum()
        if by is not None:
            return _run(self, reducer, edges, (), (x,)).view(self.num_rows, self.num_relations * x.shape[1])
        if into is None:
            return _run(self, reducer, edges, (), (x,))
        assert reduce != "max", "only sums can be added to what is there"
        return _run(self, reducer, edges, (into,), (x,))

    def attend(
        self, values: Tensor, source: Tensor, target: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GAT over in-edges and one self-loop: softmax of leaky_relu(target_i + source_j), [N, H*D].

        values [N, H*D]; source, target [N, H] are each vertex's logit terms.
        """
        reducer = Attention(source.shape[1], slope, self._attention_dropout(dropout))
        return _run(self, reducer, self._edges_for("attend", None, values.dtype), (target,), (values, source))

    def attend_dynamic(
        self, query: Tensor, key: Tensor, att: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GATv2: softmax of att . leaky_relu(query_i + key_j) [H, D], values are the keys [N, H*D]."""
        reducer = DynamicAttention(att.shape[0], slope, self._attention_dropout(dropout))
        return _run(self, reducer, self._edges_for("attend", None, key.dtype), (query, att), (key,))

    def message(self, fn: Callable[[EdgeRows], Tensor], x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """Any differentiable message: fn sees both ends' rows of every edge and returns [E, D'] to be reduced."""
        rows = torch.cat([x, self.halo(x)]) if self.exchanges else x
        source, destination, carried = self._edge_list
        if x.dtype == torch.float64:
            carried = {name: data.double() if data.is_floating_point() else data for name, data in carried.items()}
        messages = fn(EdgeRows(rows[source], x[destination], *(carried.get(name) for name in EDGE_DATA)))
        out = messages.new_zeros(self.num_rows, *messages.shape[1:])
        if reduce == "max":
            index = destination.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)
            return out.scatter_reduce(0, index, messages, "amax", include_self=False)
        out = out.index_add(0, destination, messages)
        if reduce == "mean":
            out = out / self.in_degrees.clamp(min=1).to(out.dtype).view(-1, *[1] * (out.dim() - 1))
        return out

    def halo(self, x: Tensor) -> Tensor:
        """The rows of x that other workers own and this one's edges read, [H, D]; differentiable."""
        return exchange(x, self._route, self.comm, self.codec, "halo rows")

    # -- noise and elementwise work, the same for any placement -------------------------------------------------

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Drops entries by a hash of (seed, epoch, call, global id, column); identity outside training."""
        key = self.noise.next_key()
        if key is None or p == 0.0:
            return x
        out: Tensor = _Dropout.apply(x, self.global_ids, p, key)  # type: ignore[no-untyped-call]
        return out

    def relu_dropout_(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """relu(x + bias), then dropout, in one pass and in place."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        out: Tensor = _ReluDropout.apply(x, bias, self.global_ids, p, key or 0)  # type: ignore[no-untyped-call]
        return out

    def elu_dropout(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """elu(x + bias), then dropout; x stays as it is, for those that still need it."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        out: Tensor = _EluDropout.apply(x, bias, self.global_ids, p, key or 0)  # type: ignore[no-untyped-call]
        return out

    def _attention_dropout(self, p: float) -> AttentionDropout | None:
        key = self.noise.next_key()
        return None if key is None or p == 0.0 else AttentionDropout(p, key)

    # -- constant inputs ---------------------------------------------------------------------------------------

    def hold_constant(self, x: Tensor) -> None:
        """Declares x, this very tensor, unchanging: its aggregates are computed (and exchanged) once."""
        assert not x.requires_grad, "a tensor that trains is not constant"
        self.constant = x
        self._cached.clear()

    def is_constant(self, x: Tensor) -> bool:
        return x is self.constant

    def _aggregate_once(self, x: Tensor, reduce: Reduce, weight: Weight, by: By) -> Tensor:
        name = (reduce, weight, by)
        if name not in self._cached:
            self.constant, self._forward_kind = None, "features"
            with torch.no_grad():
                self._cached[name] = self.aggregate(x, reduce, weight, by=by)
            self.constant, self._forward_kind = x, "hidden_forward"
        return self._cached[name]

    # -- edges and their coefficients ---------------------------------------------------------------------------

    def _check_by(self, by: By, weight: Weight, into: Tensor | None) -> None:
        if by != "relation":
            raise UserError(f"aggregate(by={by!r}) is not known: choose relation, or leave it out")
        if not self.num_relations:
            raise UserError(
                f"{self.shard.graph_name} has edges of one kind, so that none can be told apart by relation: ingest it "
                "with --relation-column"
            )
        if isinstance(weight, Tensor) or weight == "symmetric" or into is not None:
            raise UserError('aggregate(by="relation") takes no weight but "edge", and no `into`')

    def _edges_for(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        if isinstance(weight, Tensor):
            return self._edges_with(weight, reduce, dtype)
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._edges:
            made = self._looped_edges() if weight == "symmetric" or reduce == "attend" else self._plain_edges()
            if by == "relation":
                made = self._relation_edges()
            if reduce == "attend" or weight is None:
                made = _without_weights(made)
            if weight == "symmetric":
                if reduce != "sum":
                    raise UserError('weight="symmetric" is a sum with fixed coefficients: use reduce="sum"')
                made = self._symmetric(made)
            elif reduce == "mean":
                made = _mean(made)
            self._edges[name] = Edges(made.local.cast(dtype), made.remote.cast(dtype))
        return self._edges[name]

    def _edges_with(self, weight: Tensor, reduce: str, dtype: torch.dtype) -> Edges:
        if weight.requires_grad:
            raise UserError("aggregate's weight is constant: for weights that train use graph.message")
        local, remote = self._plain_edges().local, self._plain_edges().remote
        expected = local.csr.num_edges + remote.csr.num_edges
        if weight.shape != (expected,):
            raise UserError(f"weight has shape {tuple(weight.shape)}, this shard has {expected} edges")
        first, second = weight[: local.csr.num_edges], weight[local.csr.num_edges :]
        made = Edges(local.scaled(None, None, first), remote.scaled(None, None, second))
        if reduce == "mean":
            made = _mean(made)
        return Edges(made.local.cast(dtype), made.remote.cast(dtype))

    def _plain_edges(self) -> Edges:
        if "plain" not in self._edges:
            self._edges["plain"] = Edges(Block(self.shard.local), Block(self.shard.remote))
        return self._edges["plain"]

    def _relation_edges(self) -> Edges:
        """The graph with a row for every (vertex, relation)."""
        if "relation" not in self._edges:
            blocks = (Block(by_relation(csr, self.num_relations)) for csr in (self.shard.local, self.shard.remote))
            self._edges["relation"] = Edges(*blocks)
        return self._edges["relation"]

    def _looped_edges(self) -> Edges:
        """The graph with one self-loop per vertex, which is always local."""
        if "looped" not in self._edges:
            self._edges["looped"] = Edges(Block(with_self_loops(self.shard.local)), self._plain_edges().remote)
        return self._edges["looped"]

    def _symmetric(self, edges: Edges) -> Edges:
        degrees = row_sums(edges.local.csr) + row_sums(edges.remote.csr)
        scale = torch.where(degrees > 0, degrees.clamp(min=1e-300).rsqrt(), 0.0)
        halo_scale = scale[:0]
        if self.exchanges:
            rows = scale.unsqueeze(1)
            flight = start_exchange(self.comm, self._route, rows, raw, "topology", "vertex degrees")
            halo_scale = flight.finish().squeeze(1)
        return Edges(
            edges.local.scaled(scale, scale, edges.local.csr.weight),
            edges.remote.scaled(scale, halo_scale, edges.remote.csr.weight),
        )

    @cached_property
    def _edge_list(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Source rows (halo behind own rows) and destination rows of all edges, int64 [E], and what the edges carry."""
        local, remote = Block(self.shard.local), Block(self.shard.remote)
        source = torch.cat([local.csr.indices.long(), remote.csr.indices.long() + self.num_rows])
        destination = torch.cat([local.destinations, remote.destinations])
        theirs = remote.csr.edge_data
        carried = {name: torch.cat([data, theirs[name]]) for name, data in local.csr.edge_data.items()}
        if "relation" in carried:  # an index into what a layer has per relation
            carried["relation"] = carried["relation"].long()
        return source, destination, carried

    # -- exchange, for the schedules ----------------------------------------------------------------------------

    def start_halo(self, x: Tensor) -> InFlight:
        return start_exchange(self.comm, self._route, x, self.codec, self._forward_kind, "halo rows")

    def start_home(self, d_halo: Tensor, into: Tensor) -> InFlight:
        return start_exchange(
            self.comm, self._route_home, d_halo, self.codec, "hidden_backward", "halo gradients", out=into
        )


def _without_weights(edges: Edges) -> Edges:
    return Edges(edges.local.scaled(None, None, None), edges.remote.scaled(None, None, None))


def _mean(edges: Edges) -> Edges:
    total = row_sums(edges.local.csr) + row_sums(edges.remote.csr)
    scale = torch.where(total != 0, 1.0 / total, 0.0)
    return Edges(
        edges.local.scaled(scale, None, edges.local.csr.weight),
        edges.remote.scaled(scale, None, edges.remote.csr.weight),
    )


def _run(view: GraphView, reducer: Reducer, edges: Edges, dst: tuple[Tensor, ...], src: tuple[Tensor, ...]) -> Tensor:
    for tensor in (*dst[:1], *src):
        if tensor.shape[0] != view.num_rows:
            raise UserError(f"expected one row per owned vertex ({view.num_rows}), got {tuple(tensor.shape)}")
    out: Tensor = _Aggregate.apply(view, reducer, edges, len(dst), *dst, *src)  # type: ignore[no-untyped-call]
    return out


class _Aggregate(torch.autograd.Function):
    """Any reducer under the view's schedule; the adjoint goes back over the same routes."""

    @staticmethod
    def forward(ctx: Any, view: GraphView, reducer: Reducer, edges: Edges, num_dst: int, *tensors: Tensor) -> Tensor:
        dst, src = tensors[:num_dst], tuple(tensor.contiguous() for tensor in tensors[num_dst:])
        out, kept, halo = schedules.forward(view, reducer, edges, dst, src)
        if isinstance(reducer, Sum) and dst:
            ctx.mark_dirty(dst[0])
        ctx.view, ctx.reducer, ctx.edges = view, reducer, edges
        ctx.widths = [tensor.shape[1] for tensor in src]
        ctx.sizes = (num_dst, len(src), len(kept)) if reducer.reads_sources else (0, 0, 0)
        ctx.num_dst = num_dst
        if reducer.reads_sources:
            ctx.save_for_backward(out, *dst, *src, *kept, *halo)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        num_dst, num_src, num_kept = ctx.sizes
        out, rest = (saved[0], saved[1:]) if saved else (grad, ())
        dst, rest = rest[:num_dst], rest[num_dst:]
        src, rest = rest[:num_src], rest[num_src:]
        kept, halo = rest[:num_kept], rest[num_kept:]
        d_dst, d_src = schedules.backward(
            ctx.view, ctx.reducer, ctx.edges, grad.contiguous(), out, kept, dst, src, halo, ctx.widths
        )
        return (None, None, None, None, *d_dst[: ctx.num_dst], *d_src)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        ctx.ids, ctx.p, ctx.key = ids, p, key
        return kernels.dropout_rows(x, ids, p, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.dropout_rows(grad.contiguous(), ctx.ids, ctx.p, ctx.key), None, None, None


class _EluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int) -> Tensor:
        out = kernels.bias_elu_dropout(x, bias, ids, p, key)
        ctx.save_for_backward(out)
        ctx.ids, ctx.p, ctx.key, ctx.has_bias = ids, p, key, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        grad = kernels.elu_dropout_backward(grad.contiguous(), out, ctx.ids, ctx.p, ctx.key)
        return grad, grad.sum(0) if ctx.has_bias else None, None, None, None


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, ids: Tensor, p: float, key: int) -> Tensor:
        kernels.bias_relu_dropout_(x, bias, ids, p, key)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.p, ctx.has_bias = p, bias is not None
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        grad = kernels.relu_dropout_backward(grad.contiguous(), out, ctx.p)
        return grad, grad.sum(0) if ctx.has_bias else None, None, None, None
