"""What a layer sees of the graph: the rows that this worker owns, and verbs that reach across workers.

A layer written against `GraphView` does not know how many workers there are, which schedule runs or how rows look
on the wire: `aggregate`, `attend` and `message` are differentiable and mean the same under each of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from weft.aggregate.elementwise import Dropout, EluDropout, ReluDropout
from weft.aggregate.function import AggregateFunction
from weft.aggregate.late import Late, late, mark, settle
from weft.aggregate.messages import MessageFn, MessageReduce, Messages, inspect
from weft.aggregate.noise import Noise
from weft.aggregate.reducers import Attention, AttentionDropout, DotAttention, DynamicAttention, Max, Reducer, Sum
from weft.aggregate.replay import Tape
from weft.aggregate.topology import MATERIALISED, NOT_CACHED, By, Edges, Level, Reduce, Schedule, Topology, Weight
from weft.aggregate.wire import RAW, Call, Format, Wire, plain_wire
from weft.comm import Communicator, raw
from weft.errors import UserError
from weft.kernels.native import native_for
from weft.partition import Shard


@dataclass
class Pass:
    """What all views of one worker share, and what changes from pass to pass."""

    comm: Communicator
    format: Format
    layer: str | None = None  # which one is at work, as people call it
    arriving: Late | None = None  # of the aggregation that is being made
    latest: Late | None = None  # of the last one
    put_off: Late | None = None  # what is done once the rows that are sent are on their way
    may_be_late: bool = False  # what comes out of the next aggregation may be a late tensor
    noise: Noise = field(default_factory=lambda: Noise(seed=0))
    tape: Tape | None = None


class GraphView:
    """One worker's side of the graph: N owned rows, and those of other workers that its edges read."""

    def __init__(
        self,
        shard: Shard,
        comm: Communicator | None = None,
        format: Format = RAW,
        schedule: Schedule = MATERIALISED,
    ) -> None:
        self.shard = shard
        self._pass = Pass(comm or Communicator.alone(), format)
        assert self.comm.num_workers == shard.num_workers, "a shard belongs to a run of its own worker count"
        self.topology = Topology(shard, self.comm, schedule)
        self.constant: Tensor | None = None
        self._cached: dict[Any, Tensor] = {}
        self._whole = self  # of a level: the view that it is a part of
        self._forward_kind = "hidden_forward"
        self._levels: list[GraphView] = []
        self._square: GraphView | None = None
        self._entrance: GraphView | None = None  # how rows of the layer before come here, where they must
        self._restricted = False

    # -- what is here ------------------------------------------------------------------------------------------

    @property
    def comm(self) -> Communicator:
        return self._pass.comm

    @property
    def noise(self) -> Noise:
        return self._pass.noise

    @property
    def format(self) -> Format:
        """How rows look on the wire."""
        return self._pass.format

    @format.setter
    def format(self, format: Format) -> None:
        self._pass.format = format

    @property
    def num_rows(self) -> int:
        """Rows of x."""
        return self.topology.num_in

    @property
    def num_out(self) -> int:
        """Rows of an aggregate: as many as x has, but for the levels of a restricted training pass."""
        return self.topology.num_out

    @property
    def num_halo(self) -> int:
        return self.shard.num_halo

    @property
    def num_edges(self) -> int:
        """Edges from rows that are here."""
        return sum(block.csr.num_edges for block in self.topology.plain.own)

    @property
    def exchanges(self) -> bool:
        """Whether rows of other workers come for an aggregate."""
        return bool(self.topology.rounds)

    @property
    def num_relations(self) -> int:
        """How many kinds of edges the graph has; 0: it does not tell edges apart."""
        return self.shard.num_relations

    @property
    def global_ids(self) -> Tensor:
        return self.topology.ids

    @property
    def in_degrees(self) -> Tensor:
        """Number of in-edges of each row that comes out, over the whole graph, int64 [N]."""
        return self.topology.in_degrees

    def total_rows(self, rows: int) -> int:
        """How many rows a layer has on all workers together, where it has so many here."""
        if self.topology.is_whole:
            return self.shard.num_global_nodes
        count = torch.tensor([rows])

        def total() -> int:
            return int(self.comm.all_reduce(count, "control", "rows of all workers"))

        return int(self.once(total))

    def own(self, x: Tensor) -> Tensor:
        """The rows of x that an aggregate has too: its first ones."""
        return x if x.shape[0] == self.num_out else x[: self.num_out]

    # -- levels ------------------------------------------------------------------------------------------------

    def restrict(self, sizes: Sequence[int]) -> None:
        """Prepares passes that compute only what a loss on the first rows needs.

        sizes[k]: how many of the first rows layer k reads; sizes[k + 1] how many come out of it. Every worker calls
        it with as many sizes.
        """
        self._levels = []
        for num_in, num_out in pairwise(sizes):
            self._levels.append(self._level(Level(self.topology, num_in, num_out)))

    def sampled(
        self,
        topologies: Sequence[Topology],
        x: Tensor,
        aggregates: dict[Any, Tensor] | None = None,
        entrances: Mapping[int, Topology] | None = None,
    ) -> None:
        """Prepares a pass over a minibatch: what each layer works on.

        `aggregates` are those of the input rows x over all their in-edges, by (reduce, weight, by): the first layer,
        whose topology has no edges then, finds them made. `entrances`, by layer: edges along which the rows that the
        layer before gave come to where this one wants them.
        """
        self._levels = [self._sampled_level(topology) for topology in topologies]
        if aggregates is not None:
            self._levels[0].constant, self._levels[0]._cached = x, aggregates
        for depth, topology in (entrances or {}).items():
            self._levels[depth]._entrance = self._sampled_level(topology)

    def _level(self, topology: Topology) -> "GraphView":
        view = object.__new__(GraphView)
        view.__dict__.update(self.__dict__)
        view.topology, view._levels, view._cached, view._square = topology, [], {}, None
        view._entrance = None
        return view

    def _sampled_level(self, topology: Topology) -> "GraphView":
        view = self._level(topology)
        view.constant = None  # its rows are others in every step
        return view

    @contextmanager
    def restricted(self) -> Iterator[None]:
        """A training pass: layers see their level only."""
        self._restricted = bool(self._levels)
        try:
            yield
        finally:
            self._restricted = False

    def level(self, depth: int) -> "GraphView":
        """What layer `depth` of a stack works on."""
        self._pass.layer = f"layer {depth + 1}"
        return self._levels[depth] if self._restricted else self

    def squared(self) -> "GraphView":
        """This level with as many rows coming out as going in, for layers that rely on it."""
        if self.num_rows == self.num_out:
            return self
        if self._square is None:
            self._square = self._level(self.topology.squared())
        return self._square

    def enter(self, x: Tensor) -> Tensor:
        """The rows that this level reads, of those that the layer before gave."""
        if self._entrance is not None:
            return self._entrance.aggregate(x)
        if x.shape[0] == self.num_rows:
            return x
        if x is not self._whole.constant:
            return x[: self.num_rows]
        if self.constant is None or self.constant is x:
            self.constant = x[: self.num_rows]
        return self.constant

    def gathered(self, x: Tensor) -> tuple["GraphView", Tensor]:
        """This level with all rows that its edges read in one place, own ones first; and those rows."""
        if not self.exchanges:
            return self, x
        picking, edges = self.topology.gathering()
        return self._sampled_level(edges), self._sampled_level(picking).aggregate(x)

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
            return self._readers_first(self._aggregate_once(x, reduce, weight, by))
        if reduce not in ("sum", "mean", "max"):
            raise UserError(f"aggregate(reduce={reduce!r}) is not known: choose sum, mean or max")
        edges = self.topology.edges(reduce, weight, x.dtype, by)
        reducer: Reducer = Max() if reduce == "max" else Sum()
        if by is not None:
            if into is not None:
                raise UserError('aggregate(by="relation") has no `into`: add its result yourself')
            return self._run(reducer, edges, (), (x,)).view(self.num_out, self.num_relations * x.shape[1])
        if into is None:
            return self._run(reducer, edges, (), (x,))
        assert reduce != "max", "only sums can be added to what is there"
        return self._run(reducer, edges, (into,), (x,))

    def attend(
        self, values: Tensor, source: Tensor, target: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GAT over in-edges and one self-loop: softmax of leaky_relu(target_i + source_j), [N, H*D].

        values [N, H*D]; source, target [N, H] are each vertex's logit terms; of target, own rows only.
        """
        reducer = Attention(source.shape[1], slope, self._attention_dropout(dropout))
        return self._run(reducer, self.topology.edges("attend", None, values.dtype), (target,), (values, source))

    def attend_dynamic(
        self, query: Tensor, key: Tensor, att: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GATv2: softmax of att . leaky_relu(query_i + key_j) [H, D], values are the keys [N, H*D]."""
        reducer = DynamicAttention(att.shape[0], slope, self._attention_dropout(dropout))
        return self._run(reducer, self.topology.edges("attend", None, key.dtype), (query, att), (key,))

    def attend_dot(
        self, query: Tensor, key: Tensor, values: Tensor, heads: int, dropout: float = 0.0, scale: float | None = None
    ) -> Tensor:
        """Attention of a transformer over in-edges alone: softmax of scale * query_i . key_j per head, [N, H*Dv].

        query, key [N, H*D]; values [N, H*Dv]. The scale is 1 / sqrt(D) unless given.
        """
        if heads < 1 or query.shape[1] % heads or values.shape[1] % heads:
            widths = f"query has {query.shape[1]} columns and values {values.shape[1]}"
            raise UserError(f"{widths}: they do not split into {heads} equal heads")
        scale = (query.shape[1] // heads) ** -0.5 if scale is None else scale
        reducer = DotAttention(heads, scale, self._attention_dropout(dropout))
        return self._run(reducer, self.topology.edges("attend_plain", None, values.dtype), (query,), (key, values))

    def message(self, fn: MessageFn, x: Tensor, reduce: MessageReduce = "sum") -> Tensor:
        """Any differentiable message: fn sees both ends' rows of every edge and returns [E, ...] to be reduced.

        With "softmax" it returns logits [E, H] and values [E, H*D], and each head's values are averaged by the
        softmax of their logits over a vertex's in-edges. fn works row by row and may use any tensors that train.
        """
        if reduce not in ("sum", "mean", "max", "softmax"):
            raise UserError(f"message(reduce={reduce!r}) is not known: choose sum, mean, max or softmax")
        edges = self.topology.plain
        signature = inspect(fn, x, edges.own[0], reduce)
        reducer = Messages(fn, reduce, signature, self.topology.mean_counts)
        src = (x,) if signature.reads_src else ()
        out = self._run(reducer, edges, (self.own(x), *signature.captured), src)
        scale = self.topology.sum_scale if reduce == "sum" else None
        if scale is not None:
            out = out * scale.to(out.dtype)[:, None]
        return out.view(-1, *signature.shapes[-1])

    # -- noise and elementwise work, the same for any placement -------------------------------------------------

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Drops entries by a hash of (seed, epoch, call, global id, column); identity outside training."""
        key = self.noise.next_key()
        if key is None or p == 0.0:
            return x
        out: Tensor = Dropout.apply(x, self._ids_of(x), p, key)  # type: ignore[no-untyped-call]
        return out

    def relu_dropout_(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """relu(x + bias), then dropout, in one pass and in place."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        coming = late(x)
        out: Tensor = ReluDropout.apply(x, bias, self._ids_of(x), p, key or 0, coming)  # type: ignore[no-untyped-call]
        return mark(out, coming)

    def elu_dropout(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """elu(x + bias), then dropout; x stays as it is, for those that still need it."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        coming = late(x)
        out: Tensor = EluDropout.apply(x, bias, self._ids_of(x), p, key or 0, coming)  # type: ignore[no-untyped-call]
        return mark(out, coming)

    def _ids_of(self, x: Tensor) -> Tensor:
        return self.global_ids[: x.shape[0]]

    def _attention_dropout(self, p: float) -> AttentionDropout | None:
        key = self.noise.next_key()
        return None if key is None or p == 0.0 else AttentionDropout(p, key)

    # -- constant inputs ---------------------------------------------------------------------------------------

    def hold_constant(self, x: Tensor) -> None:
        """Declares x, this very tensor, unchanging: its aggregates are computed (and exchanged) once."""
        assert not x.requires_grad, "a tensor that trains is not constant"
        for view in (self, *self._levels):
            view.constant = x if view is self else None
            view._cached.clear()

    def is_constant(self, x: Tensor) -> bool:
        return x is self.constant

    def aggregate_once(self, x: Tensor, reduce: Reduce, weight: Weight) -> Tensor:
        """The aggregate of rows that never change, over the whole graph; of those that are held, it is kept."""
        if x is self.constant:
            return self._aggregate_once(x, reduce, weight, None)
        self._forward_kind = "features"
        try:
            with torch.no_grad(), self.taped(None), self.late_results(False):
                return self.aggregate(x, reduce, weight)
        finally:
            self._forward_kind = "hidden_forward"

    def _aggregate_once(self, x: Tensor, reduce: Reduce, weight: Weight, by: By) -> Tensor:
        name = (reduce, weight, by)
        if name not in self._cached:
            if self._whole is not self:
                whole = self._whole
                if not isinstance(self.topology, Level):
                    raise UserError(NOT_CACHED)
                assert whole.constant is not None
                self._cached[name] = whole._aggregate_once(whole.constant, reduce, weight, by)[: self.num_out]
                return self._cached[name]
            self.constant, self._forward_kind = None, "features"
            with torch.no_grad(), self.taped(None), self.late_results(False):
                self._cached[name] = self.aggregate(x, reduce, weight, by=by)
            self.constant, self._forward_kind = x, "hidden_forward"
        return self._cached[name]

    def _readers_first(self, x: Tensor) -> Tensor:
        """Where that may be, x as a tensor of which the rows that others will want to read are worked on first."""
        if not self._pass.may_be_late or not native_for(x):
            return x
        self._pass.latest = Late(self.topology.sent_spans[0], x.shape[0])
        return mark(x.detach(), self._pass.latest)

    # -- running reducers ----------------------------------------------------------------------------------------

    @contextmanager
    def taped(self, tape: Tape | None) -> Iterator[None]:
        """Results of aggregations are recorded on the tape, or handed out from it."""
        before, self._pass.tape = self._pass.tape, tape
        try:
            yield
        finally:
            self._pass.tape = before

    def once(self, make: Any) -> Any:
        """What `make()` gives; where a layer is computed again in the backward pass, what it gave before."""
        return make() if self._pass.tape is None else self._pass.tape.result(make)

    @property
    def replaying(self) -> bool:
        return self._pass.tape is not None and self._pass.tape.replaying

    def _check_format(self, reducer: Reducer) -> None:
        fine = self.format.name == "raw" or (self.format.name == "bf16" and reducer.tolerates_bf16)
        if reducer.unroundable and not fine:
            raise UserError(f"codec {self.format.name} rounds rows, and {reducer.unroundable}: use codec raw")

    def _wire(self, reducer: Reducer, edges: Edges) -> Wire:
        if self._forward_kind == "features":  # sent once, and for all epochs
            return plain_wire(raw, self._forward_kind)
        number = self.noise.next_aggregation()
        self._check_format(reducer)
        return self.format.wire(
            Call(
                number,
                self._pass.layer or f"aggregation {number}",
                self._forward_kind,
                self.topology,
                edges,
                isinstance(reducer, Sum),
                reducer.exact,
                self.noise.seed,
                self.noise.epoch or 0,
                self.noise.step,
            )
        )

    def _run(self, reducer: Reducer, edges: Edges, dst: tuple[Tensor, ...], src: tuple[Tensor, ...]) -> Tensor:
        for rows, tensors in ((self.num_out, dst[:1]), (self.num_rows, src)):
            for tensor in tensors:
                if tensor.shape[0] != rows:
                    raise UserError(f"expected one row per owned vertex ({rows}), got {tuple(tensor.shape)}")
        put_off = self._put_off(dst, src)
        if put_off is None:
            settle(*dst, *src)
        self._pass.put_off = put_off
        latest = self._pass.latest
        assert latest is None or latest is put_off or latest.settled, (
            "late rows were read by code that does not wait for them"
        )
        out: Tensor = AggregateFunction.apply(self, reducer, edges, len(dst), *dst, *src)  # type: ignore[no-untyped-call]
        self._pass.latest, self._pass.arriving = self._pass.arriving, None
        return mark(out, self._pass.latest)

    def _put_off(self, dst: tuple[Tensor, ...], src: tuple[Tensor, ...]) -> Late | None:
        """What can wait until the rows of `src` that others read are on their way."""
        found = {id(late(tensor)): late(tensor) for tensor in (*dst, *src)}
        (only,) = found.values() if len(found) == 1 else (None,)
        return None if only is None or only.arrives else only

    @contextmanager
    def late_results(self, allowed: bool) -> Iterator[None]:
        """What comes out of an aggregation may be a late tensor: who is handed it knows what that is."""
        whole = self.num_rows == self.num_out and self.comm.num_workers > 1
        before = self._pass.may_be_late
        self._pass.may_be_late = allowed and whole and self.topology.schedule.overlap and self._pass.tape is None
        try:
            yield
        finally:
            self._pass.may_be_late = before
