"""A shard's whole topology: every owned vertex and all of its in-edges."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.aggregate import waiting
from weft.aggregate.blocks import Block
from weft.aggregate.coefficients import averaged, cast, check_by, check_symmetric, row_totals, without_coefficients
from weft.aggregate.edge_data import means_of_edges, with_loops_carrying, without_loops
from weft.aggregate.rounds import Schedule, even_spans, make_rounds
from weft.aggregate.topology import By, Edges, MessageScale, Weight
from weft.comm import Communicator, build_route, raw, start_exchange
from weft.errors import UserError
from weft.graph.csr import CSR, by_relation, inverse_sqrt, take_columns, with_self_loops
from weft.partitioning import Shard


class WholeShard:
    """The edges of a shard, arranged for a schedule. Its rows are the owned vertices, in and out."""

    of_minibatch = False
    counted: Tensor | None = None
    final_rows = cached_property(waiting.final_rows)
    home_spans = cached_property(waiting.home_spans)
    sent_spans = cached_property(waiting.sent_spans)

    def __init__(self, shard: Shard, comm: Communicator, schedule: Schedule) -> None:
        self.shard = shard
        self.comm = comm
        self.schedule = schedule
        self.num_in = self.num_out = shard.num_nodes
        self.ids = shard.global_ids
        route = build_route(comm, shard.halo_rows, shard.halo_counts, self.num_in)
        self.rounds = make_rounds(shard, comm, route, schedule)
        self.spans = tuple(even_spans(self.num_in, schedule.blocks))
        self._made: dict[tuple[str, str | None, bool, By], Edges] = {}
        self._mean_looped: dict[bool, Edges] = {}  # by whether rows are float64

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        check_by(self.shard, by, weight)
        if isinstance(weight, Tensor):
            given = self._given(weight)
            return cast(averaged(given) if reduce == "mean" else given, dtype)
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._made:
            made = self._looped if weight == "symmetric" or reduce == "attend" else self.plain
            if by is not None:
                made = self._by_relation
            if reduce == "attend" or weight is None:
                made = without_coefficients(made)
            if weight == "symmetric":
                check_symmetric(reduce)
                made = self._symmetric(made)
            self._made[name] = cast(averaged(made) if reduce == "mean" else made, dtype)
        return self._made[name]

    @cached_property
    def plain(self) -> Edges:
        return self._divided(self.shard.local, self.shard.remote)

    def mean_looped(self, dtype: torch.dtype) -> Edges:
        double = dtype == torch.float64
        if double not in self._mean_looped:
            local = without_loops(self.shard.local)
            own = with_loops_carrying(local, means_of_edges([local, self.shard.remote], [None, None], dtype))
            blocks = tuple(Block(take_columns(own, span)) for span in self.spans)
            self._mean_looped[double] = Edges(blocks, self.plain.rounds)
        return self._mean_looped[double]

    @cached_property
    def in_degrees(self) -> Tensor:
        return self.shard.local.degrees() + self.shard.remote.degrees()

    @property
    def message_scale(self) -> MessageScale:
        return MessageScale(self.in_degrees)

    def squared(self) -> "WholeShard":
        return self

    @cached_property
    def _looped(self) -> Edges:
        """The graph with one self-loop per vertex, which is always from an own row."""
        own = with_self_loops(self.shard.local)
        return Edges(tuple(Block(take_columns(own, span)) for span in self.spans), self.plain.rounds)

    @cached_property
    def _by_relation(self) -> Edges:
        count = self.shard.num_relations
        return self._divided(by_relation(self.shard.local, count), by_relation(self.shard.remote, count))

    def _divided(self, local: CSR, remote: CSR) -> Edges:
        return Edges(
            tuple(Block(take_columns(local, span)) for span in self.spans),
            tuple(Block(take_columns(remote, round.slots)) for round in self.rounds),
        )

    def _given(self, weight: Tensor) -> Edges:
        """Edges with a user's own constants, one per edge of this shard, local edges first."""
        if weight.requires_grad:
            raise UserError("aggregate's weight is constant: for weights that train use graph.message")
        local, remote = self.shard.local, self.shard.remote
        if weight.shape != (self.shard.num_edges,):
            raise UserError(f"weight has shape {tuple(weight.shape)}, this shard has {self.shard.num_edges} edges")
        first, second = weight[: local.num_edges], weight[local.num_edges :]
        return self._divided(replace(local, weight=first), replace(remote, weight=second))

    def _symmetric(self, edges: Edges) -> Edges:
        """D^-1/2 A D^-1/2; the degrees of other workers' vertices are asked for."""
        scale = inverse_sqrt(row_totals(edges), self.ids, self.shard.graph_name)
        own = (
            block.scaled(scale, scale[span], block.csr.weight)
            for block, span in zip(edges.own, self.spans, strict=True)
        )
        remote = []
        for block, round in zip(edges.rounds, self.rounds, strict=True):
            exchange = start_exchange(self.comm, round.route, scale.unsqueeze(1), raw, "topology", "vertex degrees")
            remote.append(block.scaled(scale, exchange.finish().squeeze(1), block.csr.weight))
        return Edges(tuple(own), tuple(remote))
