"""What one layer of a restricted training pass works on: only some of the first rows come out."""

from functools import cached_property

import torch
from torch import Tensor

from weft.aggregate import waiting
from weft.aggregate.blocks import Block
from weft.aggregate.rounds import Round, Schedule
from weft.aggregate.topology import By, Edges, MessageScale, Topology, Weight
from weft.comm import Communicator, build_route
from weft.partitioning import Shard


class RestrictedLevel:
    """The part of a topology that computes its first `num_needed` rows out of its first `num_in` ones.

    `num_out` rows come out: the needed ones and, where there are more, rows without edges.
    """

    final_rows = cached_property(waiting.final_rows)
    home_spans = cached_property(waiting.home_spans)
    sent_spans = cached_property(waiting.sent_spans)

    def __init__(
        self,
        base: Topology,
        num_in: int,
        num_needed: int,
        num_out: int,
        columns: tuple[Tensor, ...],
        rounds: tuple[Round, ...],
    ) -> None:
        """`columns`: of each of the base's rounds, the number that each arriving row has here, or -1, int32."""
        self._base, self._num_needed, self._columns = base, num_needed, columns
        self.num_in, self.num_out, self.rounds = num_in, num_out, rounds
        self.ids = base.ids[:num_in]
        self.spans = tuple(slice(min(s.start, num_in), min(s.stop, num_in)) for s in base.spans)
        self._made: dict[tuple[str, str | None, bool, By], Edges] = {}
        self._mean_looped: dict[bool, Edges] = {}

    @property
    def shard(self) -> Shard:
        return self._base.shard

    @property
    def comm(self) -> Communicator:
        return self._base.comm

    @property
    def schedule(self) -> Schedule:
        return self._base.schedule

    @property
    def of_minibatch(self) -> bool:
        return self._base.of_minibatch

    @property
    def counted(self) -> Tensor | None:
        return self._base.counted

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        if isinstance(weight, Tensor):
            return self._cut(self._base.edges(reduce, weight, dtype, by))
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._made:
            per_vertex = 1 if by is None else self.shard.num_relations
            self._made[name] = self._cut(self._base.edges(reduce, weight, dtype, by), per_vertex)
        return self._made[name]

    @cached_property
    def plain(self) -> Edges:
        return self._cut(self._base.plain)

    def mean_looped(self, dtype: torch.dtype) -> Edges:
        double = dtype == torch.float64
        if double not in self._mean_looped:
            self._mean_looped[double] = self._cut(self._base.mean_looped(dtype))
        return self._mean_looped[double]

    @cached_property
    def in_degrees(self) -> Tensor:
        return self._base.in_degrees[: self.num_out]

    @property
    def message_scale(self) -> MessageScale:
        return MessageScale(self.in_degrees)

    def squared(self) -> "RestrictedLevel":
        """With the routes of this one, so that nobody is asked anew."""
        return RestrictedLevel(self._base, self.num_in, self._num_needed, self.num_in, self._columns, self.rounds)

    def _cut(self, edges: Edges, rows_per_vertex: int = 1) -> Edges:
        needed, wanted = self._num_needed * rows_per_vertex, self.num_out * rows_per_vertex
        own = (
            block.first_rows(needed).first_columns(span.stop - span.start).padded(wanted)
            for block, span in zip(edges.own, self.spans, strict=True)
        )
        arriving = (
            block.first_rows(needed).renumbered(columns, round.num_rows).padded(wanted)
            for block, columns, round in zip(edges.rounds, self._columns, self.rounds, strict=True)
        )
        return Edges(tuple(own), tuple(arriving))


def restrict(base: Topology, num_in: int, num_out: int) -> RestrictedLevel:
    """The level whose first `num_out` rows are computed out of the first `num_in`; every worker calls it."""
    used = [_used(block, num_out) for block in base.plain.rounds]
    columns = tuple(_numbered(mask) for mask in used)
    rounds = tuple(_shortened(base, round, mask, num_in) for round, mask in zip(base.rounds, used, strict=True))
    return RestrictedLevel(base, num_in, num_out, num_out, columns, rounds)


def _used(block: Block, num_needed: int) -> Tensor:
    """Which columns the needed rows read, bool [M]."""
    csr = block.first_rows(num_needed).csr
    mask = torch.zeros(csr.num_cols, dtype=torch.bool, device=csr.indices.device)
    mask[csr.indices.long()] = True
    return mask


def _numbered(mask: Tensor) -> Tensor:
    """The new number of each column that is used, -1 for the others, int32 [M]."""
    return torch.where(mask, torch.cumsum(mask, 0) - 1, -1).int()


def _shortened(base: Topology, round: Round, used: Tensor, num_in: int) -> Round:
    """The round with the rows that are used alone."""
    shard = base.shard
    owners = torch.repeat_interleave(torch.arange(shard.num_workers), torch.tensor(shard.halo_counts))
    counts = torch.bincount(owners[round.slots][used.cpu()], minlength=shard.num_workers).tolist()
    route = build_route(base.comm, shard.halo_rows[round.slots][used], counts, num_in)
    return Round(route, round.slots, round.ids[used])
