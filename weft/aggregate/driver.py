"""What drives passes over the graph: levels, constant input, the tape, and how aggregations run.

A `PassDriver` works on one topology: that of the whole shard, or of a level of a restricted or sampled pass.
`weft.aggregate.distributed.DistributedGraph` makes drivers. Layers see `weft.aggregate.view.GraphView`, whose verbs
call them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from weft.aggregate.async_rows import AsyncRows, Completion, Deferred, complete, split
from weft.aggregate.blocks import Block
from weft.aggregate.constant import ConstantInput
from weft.aggregate.edge_data import precision, sums_of_edges
from weft.aggregate.function import AggregateFunction
from weft.aggregate.gathering import RowGathering, joined
from weft.aggregate.noise import Noise
from weft.aggregate.reducers import Reducer, Tensors, fold_named
from weft.aggregate.replay import Tape
from weft.aggregate.topology import By, Edges, Reduce, Topology, Weight
from weft.aggregate.wire import Aggregation, Format, Wire, plain_wire
from weft.comm import Communicator, raw
from weft.errors import UserError
from weft.kernels.backends import backend_for


@dataclass
class Pass:
    """What all drivers of one worker share: how rows travel, and the state of the pass that is being made."""

    comm: Communicator
    format: Format
    layer: str | None = None  # the layer that is being computed, as people call it
    outstanding: Completion | None = None  # of the last aggregation, which is complete before the next one begins
    noise: Noise = field(default_factory=lambda: Noise(seed=0))
    tape: Tape | None = None
    forward_kind: str = "hidden_forward"  # byte class of what aggregations send

    @property
    def replaying(self) -> bool:
        """Whether a layer is computed again in the backward pass."""
        return self.tape is not None and self.tape.replaying


class PassDriver:
    """Runs the aggregations of one topology, and knows the levels below it and its constant input."""

    def __init__(
        self,
        topology: Topology,
        shared: Pass,
        constant: ConstantInput | None = None,
        boundary: "PassDriver | None" = None,
        levels: Sequence["PassDriver"] = (),
    ) -> None:
        """`boundary`: edges along which the rows of the layer before come here, where those are others; `levels`: what
        each layer of a stack works on, where that is not this driver's topology."""
        self.topology, self.shared, self.constant = topology, shared, constant
        self._boundary, self._levels = boundary, levels
        self._square: PassDriver | None = None
        self._gathering: PassDriver | None = None  # how rows are gathered in one place
        self._joined: dict[tuple[bool, str | None], Block] = {}
        self._of_edges: dict[tuple[str, Any, torch.dtype], Tensor] = {}  # aggregates of what edges carry

    @property
    def num_rows(self) -> int:
        return self.topology.num_in

    @property
    def num_out(self) -> int:
        return self.topology.num_out

    # -- types of vertices -------------------------------------------------------------------------------------

    @cached_property
    def row_types(self) -> Tensor:
        """The type of the vertex of each row, int64 [num_rows]."""
        types = self.topology.shard.types
        if types is None:
            raise UserError(f"{self.topology.shard.graph_name} has vertices of one type: ingest it as graph.yaml")
        return types.of(self.topology.ids[: self.num_rows])

    @cached_property
    def rows_by_type(self) -> tuple[Tensor, ...]:
        """The rows of each type's vertices, int64."""
        types, kinds = self.topology.shard.types, self.row_types
        assert types is not None
        return tuple((kinds == kind).nonzero().squeeze(1) for kind in range(len(types.vertices)))

    # -- levels ------------------------------------------------------------------------------------------------

    def level(self, depth: int) -> "PassDriver":
        """What drives layer `depth` of a stack."""
        self.shared.layer = f"layer {depth + 1}"
        return self._levels[depth] if self._levels else self

    def enter(self, x: Tensor) -> Tensor:
        """The rows that this level reads, of those that the layer before gave (the first layer: of the input)."""
        if self._boundary is not None:
            return self._boundary.run(*self._boundary.fold(x))
        # Constant on every worker alike, also where one needs all of its rows: what is constant decides what is sent.
        if self.constant is not None and x is self.constant.whole:
            return self.constant.rows
        return first_rows(x, self.num_rows)

    def squared(self) -> "PassDriver":
        """This level with as many rows coming out as going in."""
        if self.num_rows == self.num_out:
            return self
        if self._square is None:
            constant = None if self.constant is None else self.constant.squared()
            self._square = PassDriver(self.topology.squared(), self.shared, constant)
        return self._square

    def gathered(self, x: Tensor) -> Tensor:
        """All rows that this level's edges read in one place, own ones first; of constant rows they are kept."""
        if not self.topology.rounds:
            return x
        if self._gathering is None:
            self._gathering = PassDriver(RowGathering(self.topology), self.shared)
        if self.constant is None or x is not self.constant.rows:
            return self._gathering.run(*self._gathering.fold(x))
        if self.constant.gathered is None:
            self.constant.gathered = self._gathering.aggregate_once(x, "sum", None)
        return self.constant.gathered

    def joined(self, dtype: torch.dtype, weight: Literal["symmetric"] | None) -> Block:
        """This level's edges as one block between the rows that are gathered."""
        name = (dtype == torch.float64, weight)
        if name not in self._joined:
            edges = self.topology.plain if weight is None else self.topology.edges("sum", weight, dtype)
            self._joined[name] = joined(self.topology, edges)
        return self._joined[name]

    # -- constant input ----------------------------------------------------------------------------------------

    def hold(self, constant: ConstantInput) -> None:
        """Lets aggregates of these rows be computed once."""
        self.constant, self._square = constant, None

    def aggregate_of_constant(self, x: Tensor, reduce: Reduce, weight: Weight, by: By) -> Tensor | None:
        """The aggregate of x as it was computed once; None: x is not constant, or the weight is a tensor."""
        if self.constant is None or x is not self.constant.rows or isinstance(weight, Tensor):
            return None
        rows = self.constant.aggregate((reduce, weight, by))
        if not self.overlaps or not backend_for(rows).by_rows or rows.shape[0] != self.num_out:
            return rows
        # Under a schedule that overlaps, work on it is deferred, so that the rows that others read are computed first.
        return AsyncRows(rows, Deferred(rows.shape[0]))

    def aggregate_once(self, x: Tensor, reduce: Reduce, weight: Weight, by: By = None) -> Tensor:
        """The aggregate of rows that never change, for all epochs: sent as they are, and no part of a pass."""
        before, self.shared.forward_kind = self.shared.forward_kind, "features"
        try:
            with torch.no_grad(), self.taped(None):
                return complete(self.run(*self.fold(x, reduce, weight, None, by), by))
        finally:
            self.shared.forward_kind = before

    # -- what edges carry --------------------------------------------------------------------------------------

    def aggregate_edges(self, reduce: Reduce, weight: Weight, dtype: torch.dtype) -> Tensor:
        """The features of each vertex' in-edges folded into one row, [num_out, F]; they never change."""
        wanted = precision(dtype)
        name = (reduce, weight, wanted)
        if name not in self._of_edges:
            if reduce not in ("sum", "mean"):
                raise UserError(f"features of edges are folded by sum or mean, not {reduce}")
            if self.topology.shard.num_edge_features == 0:
                raise UserError(
                    f"the edges of {self.topology.shard.graph_name} have no features: ingest it with --edge-features"
                )
            blocks = self.topology.edges(reduce, weight, dtype).blocks()
            data = [block.csr.features for block in blocks if block.csr.features is not None]
            self._of_edges[name] = sums_of_edges(blocks, data, wanted)
        return self._of_edges[name]

    # -- tape --------------------------------------------------------------------------------------------------

    @contextmanager
    def taped(self, tape: Tape | None) -> Iterator[None]:
        """Results of aggregations are recorded on the tape, or handed out from it."""
        before, self.shared.tape = self.shared.tape, tape
        try:
            yield
        finally:
            self.shared.tape = before

    @property
    def replaying(self) -> bool:
        return self.shared.replaying

    def once(self, make: Any) -> Any:
        """What `make()` gives; where a layer is computed again in the backward pass, what it gave before."""
        tape = self.shared.tape
        if tape is not None and tape.replaying:
            return tape.replay()
        made = make()
        if tape is not None:
            tape.record(made)
        return made

    # -- aggregations ------------------------------------------------------------------------------------------

    def fold(
        self, x: Tensor, reduce: Reduce = "sum", weight: Weight = None, into: Tensor | None = None, by: By = None
    ) -> tuple[Reducer, Edges, Tensors, Tensors]:
        """What `run` takes to aggregate x."""
        fold = fold_named(reduce)
        if by is not None and into is not None:
            raise UserError('aggregate(by="relation") has no `into`: add its result yourself')
        if into is not None and not fold.traits.linear:
            raise UserError(
                f"aggregate(reduce={reduce!r}) has no `into`: only sums and means are added to what is there"
            )
        edges = self.topology.edges(fold.coefficients, weight, x.dtype, by)
        return fold.make(), edges, () if into is None else (into,), (x,)

    def attend(self, reducer: Reducer, dst: Tensors, src: Tensors, loops: bool = True) -> Tensor:
        """An attention's aggregate; `loops`: every vertex attends to itself, too."""
        edges = self.topology.edges("attend" if loops else "attend_plain", None, src[0].dtype)
        return self.run(reducer, edges, dst, src)

    def run(self, reducer: Reducer, edges: Edges, dst: Tensors, src: Tensors, by: By = None) -> Tensor:
        """The aggregate of `src`; by relation, those of a vertex side by side."""
        for rows, tensors in ((self.num_out, dst[:1]), (self.num_rows, src)):
            for tensor in tensors:
                if tensor.shape[0] != rows:
                    raise UserError(f"expected one row per owned vertex ({rows}), got {tuple(tensor.shape)}")
        out: Tensor = AggregateFunction.apply(self, reducer, edges, len(dst), *dst, *src)  # type: ignore[no-untyped-call]
        return out if by is None else out.view(self.num_out, self.topology.shard.num_relations * src[0].shape[1])

    def wire(self, reducer: Reducer, edges: Edges) -> Wire:
        """How the rows of an aggregation that begins look on the wire."""
        if self.shared.forward_kind == "features":  # sent once, and for all epochs
            return plain_wire(raw, self.shared.forward_kind)
        noise, format = self.shared.noise, self.shared.format
        number = noise.next_aggregation()
        _check_rounding(reducer, format)
        return format.wire(
            Aggregation(
                number,
                self.shared.layer or f"aggregation {number}",
                self.shared.forward_kind,
                self.topology,
                edges,
                reducer.traits.linear,
                reducer.traits.exact,
                noise.seed,
                noise.epoch or 0,
                noise.step,
            )
        )

    @property
    def overlaps(self) -> bool:
        """Whether aggregates are handed out before all of their rows have arrived, as asynchronous tensors."""
        whole = self.num_rows == self.num_out and self.shared.comm.num_workers > 1
        return whole and self.topology.schedule.overlap and self.shared.tape is None

    def deferred(self, tensors: Sequence[Tensor]) -> Deferred | None:
        """Work on these tensors that can wait until the rows that others read are on their way.

        All else that is pending is waited for, also what nobody has read: workers take in exchanges in one order.
        """
        if self.shared.outstanding is not None:
            self.shared.outstanding.wait()
        found = {id(pending): pending for pending in (split(tensor)[1] for tensor in tensors) if pending is not None}
        if len(found) == 1 and isinstance(only := next(iter(found.values())), Deferred):
            return only
        for pending in found.values():
            pending.wait()
        return None


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first rows; x itself where it has no others."""
    return x if x.shape[0] == count else x[:count]


def _check_rounding(reducer: Reducer, format: Format) -> None:
    """Refuses a format that would bias a reducer."""
    rounding = format.traits.rounding
    fine = rounding == "none" or (rounding == "float" and reducer.traits.tolerates_bf16)
    if reducer.traits.unroundable and not fine:
        raise UserError(f"codec {format.name} rounds rows, and {reducer.traits.unroundable}: use codec raw")
