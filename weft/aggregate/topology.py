"""Which rows an aggregation reads: those that this worker owns, and those that arrive from others in rounds.

A schedule is little more than how the halo is divided into rounds. All of it in one round is `materialised`; one
round for each block of each worker's rows, taken in turn so that everybody sends to somebody else, is `sequential`; one
for each worker, all of them started together, is `overlapped`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from weft.aggregate.blocks import Block, by_relation, row_sums, with_self_loops
from weft.comm import Communicator, Route, Rows, build_route, raw, start_exchange
from weft.comm.route import num_rows
from weft.comm.turns import partners
from weft.errors import UserError
from weft.partition import Shard
from weft.partition.shard import take_columns

Reduce = Literal["sum", "mean", "max"]
Weight = Literal["edge", "symmetric"] | Tensor | None
By = Literal["relation"] | None

NOT_CACHED = (
    "the first layer wants something of its input's neighbours that the cache of aggregated input does not hold: set "
    "sample.cache_aggregates=never"
)


@dataclass(frozen=True)
class Schedule:
    """In which order halo rows come, and what is kept of them for the backward pass.

    `rounds`: "one" takes the whole halo at once, "each" block by block. `keep`: "rows" as they arrived, "packed" as
    they travelled (where the codec packs), or "nothing": a backward pass that reads them fetches them again.
    `prefetch`: rounds in flight while one is absorbed. `blocks`: into how many each worker's rows are divided.
    `overlap`: what can be computed without the halo is, products too, while it travels. `target_rounds`: what comes
    from one worker is divided until there are about so many, but not where pieces would have fewer than
    `smallest_piece` rows.
    """

    rounds: Literal["one", "each"] = "one"
    keep: Literal["rows", "packed", "nothing"] = "rows"
    prefetch: int = 1
    blocks: int = 1
    overlap: bool = False
    target_rounds: int = 1
    smallest_piece: int = 1


MATERIALISED = Schedule()
# Everything is sent as soon as it can be, and taken in as it comes: the first rows leave early, the last leave little.
OVERLAPPED = Schedule(rounds="each", prefetch=1 << 30, overlap=True, target_rounds=12, smallest_piece=1024)
SEQUENTIAL = Schedule(rounds="each", keep="nothing")


@dataclass(frozen=True)
class Round:
    """Rows that arrive together."""

    route: Route  # from everybody's rows to these
    slots: slice  # where they stand in the halo
    ids: Tensor  # int64 [M] their global ids

    @property
    def num_rows(self) -> int:
        return self.ids.numel()


@dataclass(frozen=True)
class Edges:
    """One aggregation's edges with their coefficients: from each span of own rows, and from each round's."""

    own: tuple[Block, ...]
    rounds: tuple[Block, ...]

    @property
    def num_rows(self) -> int:
        return self.own[0].csr.num_rows

    def blocks(self) -> tuple[Block, ...]:
        return self.own + self.rounds


class Topology:
    """The edges of a shard, arranged for a schedule, with the coefficients that aggregations ask for.

    x has `num_in` rows, an aggregate `num_out`; the first rows of both are the same vertices.
    """

    is_whole = True  # every vertex of the graph is a row of one worker
    narrows = False  # far fewer rows come out than go in, on all workers

    def __init__(self, shard: Shard, comm: Communicator, schedule: Schedule) -> None:
        self.shard = shard
        self.comm = comm
        self.schedule = schedule
        self.num_in = self.num_out = shard.num_nodes
        self.ids = shard.global_ids
        route = build_route(comm, shard.halo_rows, shard.halo_counts, self.num_in)
        self.rounds = make_rounds(shard, comm, route, schedule)
        self.spans = tuple(_spans(self.num_in, schedule.blocks))
        self._made: dict[Any, Edges] = {}

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        """Edges for an aggregation of rows of `dtype`; `reduce` "attend" adds self-loops and has no coefficients.

        By relation they have a row for every (vertex, relation).
        """
        if by is not None:
            self._check_by(by, weight)
        if isinstance(weight, Tensor):
            return self._cast(self._normalised(self._given(weight), reduce), dtype)
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._made:
            made = self._looped if weight == "symmetric" or reduce == "attend" else self.plain
            if by is not None:
                made = self._by_relation
            if reduce == "attend" or weight is None:
                made = _map(made, lambda block: block.scaled(None, None, None))
            if weight == "symmetric":
                if reduce != "sum":
                    raise UserError('weight="symmetric" is a sum with fixed coefficients: use reduce="sum"')
                made = self._symmetric(made)
            self._made[name] = self._cast(self._normalised(made, reduce), dtype)
        return self._made[name]

    @cached_property
    def plain(self) -> Edges:
        """Every edge of the graph, with its weight."""
        return self._divided(self.shard.local, self.shard.remote)

    @cached_property
    def _looped(self) -> Edges:
        """The graph with one self-loop per vertex, which is always from an own row."""
        own = with_self_loops(self.shard.local)
        return Edges(tuple(Block(take_columns(own, span)) for span in self.spans), self.plain.rounds)

    @cached_property
    def _by_relation(self) -> Edges:
        count = self.shard.num_relations
        return self._divided(by_relation(self.shard.local, count), by_relation(self.shard.remote, count))

    def _check_by(self, by: By, weight: Weight) -> None:
        if by != "relation":
            raise UserError(f"aggregate(by={by!r}) is not known: choose relation, or leave it out")
        if not self.shard.num_relations:
            raise UserError(
                f"{self.shard.graph_name} has edges of one kind, so that none can be told apart by relation: ingest it "
                "with --relation-column"
            )
        if isinstance(weight, Tensor) or weight == "symmetric":
            raise UserError('aggregate(by="relation") takes no weight but "edge"')

    @cached_property
    def in_degrees(self) -> Tensor:
        """Number of in-edges of each owned vertex over the whole graph, int64 [N]."""
        return self.shard.local.degrees() + self.shard.remote.degrees()

    @property
    def mean_counts(self) -> Tensor:
        """How many edges the mean over a row's edges divides by, int64 [N]."""
        return self.in_degrees

    @property
    def sum_scale(self) -> Tensor | None:
        """By what a sum over a row's edges is multiplied, where they stand for more than are here, float64 [N]."""
        return None

    def squared(self) -> "Topology":
        """The same edges with as many rows coming out as going in."""
        assert self.num_in == self.num_out
        return self

    def gathering(self) -> tuple["Topology", "Topology"]:
        """Edges that bring all rows here that these edges read, own ones first; and these edges between those."""
        raise UserError(
            "this layer wants the rows of all neighbours in one place, and on the full graph others have some of them: "
            "train on minibatches (--strategy gsplit), or with one worker"
        )

    @cached_property
    def final_rows(self) -> tuple[int, ...]:
        """How many first rows have no remote in-edge, and how many wait for nothing after each round."""
        waiting = [block.csr.degrees().nonzero() for block in self.plain.rounds]
        first = [int(rows[0]) if rows.numel() else self.num_out for rows in waiting]
        return tuple(min(first[done:], default=self.num_out) for done in range(len(first) + 1))

    @cached_property
    def home_spans(self) -> tuple[tuple[slice, ...], ...]:
        """Rows that nobody else reads, and those whose gradient is complete after each round's has come home.

        Where rows are in no order that serves, there would be many spans: then all wait for the last round.
        """
        last = torch.zeros(self.num_in, dtype=torch.int64)
        for number, round in enumerate(self.rounds, 1):
            for peer, rows in enumerate(round.route.send_rows):
                if peer != self.comm.worker and num_rows(rows):
                    last[rows if isinstance(rows, slice) else rows.cpu()] = number
        changes = (last[1:] != last[:-1]).nonzero().squeeze(1) + 1
        if changes.numel() > (len(self.rounds) + 1) ** 2:
            return (*[()] * len(self.rounds), (slice(0, self.num_in),))
        ends = [0, *changes.tolist(), self.num_in]
        spans: list[list[slice]] = [[] for _ in range(len(self.rounds) + 1)]
        for start, stop in pairwise(ends):
            spans[int(last[start]) if self.num_in else 0].append(slice(start, stop))
        return tuple(tuple(some) for some in spans)

    @cached_property
    def sent_spans(self) -> tuple[slice, ...]:
        """Of each round, the span of the rows that leave with it."""
        return tuple(
            _hull(r for p, r in enumerate(round.route.send_rows) if p != self.comm.worker) for round in self.rounds
        )

    def _divided(self, local: Any, remote: Any) -> Edges:
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

    def _normalised(self, edges: Edges, reduce: str) -> Edges:
        if reduce != "mean":
            return edges
        total = _row_totals(edges)
        scale = torch.where(total != 0, 1.0 / total, 0.0)
        return _map(edges, lambda block: block.scaled(scale, None, block.csr.weight))

    def _symmetric(self, edges: Edges) -> Edges:
        degrees = _row_totals(edges)
        scale = torch.where(degrees > 0, degrees.clamp(min=1e-300).rsqrt(), 0.0)
        own = (
            block.scaled(scale, scale[span], block.csr.weight)
            for block, span in zip(edges.own, self.spans, strict=True)
        )
        arriving = []
        for block, round in zip(edges.rounds, self.rounds, strict=True):
            flight = start_exchange(self.comm, round.route, scale.unsqueeze(1), raw, "topology", "vertex degrees")
            arriving.append(block.scaled(scale, flight.finish().squeeze(1), block.csr.weight))
        return Edges(tuple(own), tuple(arriving))

    @staticmethod
    def _cast(edges: Edges, dtype: torch.dtype) -> Edges:
        return _map(edges, lambda block: block.cast(dtype))


class Level(Topology):
    """The part of a topology that one layer of a training pass needs: only some of the first rows come out.

    `square`: as many rows come out as go in, those that nobody needs without edges, for layers that rely on that.
    """

    def __init__(self, base: Topology, num_in: int, num_out: int, square: bool = False) -> None:
        self.base, self.shard, self.comm, self.schedule = base, base.shard, base.comm, base.schedule
        self.num_in, self.num_out = num_in, num_in if square else num_out
        self._num_needed = num_out
        self.ids = base.ids[:num_in]
        self.spans = tuple(slice(min(s.start, num_in), min(s.stop, num_in)) for s in base.spans)
        used = [self._used(block) for block in base.plain.rounds]
        self._columns = [_numbered(mask) for mask in used]
        self.rounds = tuple(self._shortened(round, mask) for round, mask in zip(base.rounds, used, strict=True))
        self._made = {}

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        if isinstance(weight, Tensor):
            return self._cut(self.base.edges(reduce, weight, dtype, by))
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._made:
            per_vertex = 1 if by is None else self.shard.num_relations
            self._made[name] = self._cut(self.base.edges(reduce, weight, dtype, by), per_vertex)
        return self._made[name]

    def squared(self) -> Topology:
        return Level(self.base, self.num_in, self._num_needed, square=True)

    @cached_property
    def plain(self) -> Edges:
        return self._cut(self.base.plain)

    @cached_property
    def in_degrees(self) -> Tensor:
        return self.base.in_degrees[: self.num_out]

    def _used(self, block: Block) -> Tensor:
        """Which columns the needed rows read, bool [M]."""
        csr = block.first_rows(self._num_needed).csr
        mask = torch.zeros(csr.num_cols, dtype=torch.bool, device=csr.indices.device)
        mask[csr.indices.long()] = True
        return mask

    def _shortened(self, round: Round, used: Tensor) -> Round:
        shard = self.shard
        owners = torch.repeat_interleave(torch.arange(shard.num_workers), torch.tensor(shard.halo_counts))
        counts = torch.bincount(owners[round.slots][used.cpu()], minlength=shard.num_workers).tolist()
        route = build_route(self.comm, shard.halo_rows[round.slots][used], counts, self.num_in)
        return Round(route, round.slots, round.ids[used])

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


def _numbered(mask: Tensor) -> Tensor:
    """The new number of each column that is used, -1 for the others, int32 [M]."""
    return torch.where(mask, torch.cumsum(mask, 0) - 1, -1).int()


def make_rounds(shard: Shard, comm: Communicator, route: Route, schedule: Schedule) -> tuple[Round, ...]:
    """All of the halo at once, or from each worker in turn, block by block; own rows never travel."""
    if comm.num_workers == 1:
        return ()
    if schedule.rounds == "one":
        return (Round(route, slice(0, shard.num_halo), shard.halo_ids),)
    mine = torch.tensor([route.num_in, max(shard.halo_counts)])
    sizes, counts = comm.all_gather(mine, "control", "rows of every worker").T.tolist()
    starts = [rows.start for rows in route.recv_rows if isinstance(rows, slice)]
    rounds = []
    wanted = schedule.target_rounds // ((comm.num_workers - 1) * schedule.blocks)
    pieces = max(1, min(wanted, max(counts) // schedule.blocks // schedule.smallest_piece))
    for to, source in partners(comm.worker, comm.num_workers):
        first = starts[source]
        asked = shard.halo_rows[first : first + shard.halo_counts[source]].contiguous()
        for ours, theirs in zip(
            _spans(route.num_in, schedule.blocks), _spans(sizes[source], schedule.blocks), strict=True
        ):
            sent = _within(route.send_rows[to], ours)
            low, high = _bounds(asked, theirs)
            for leaving, arriving in zip(_spans(num_rows(sent), pieces), _spans(high - low, pieces), strict=True):
                slots = slice(first + low + arriving.start, first + low + arriving.stop)
                part = route.between(to, _piece(sent, leaving), source, slots.stop - slots.start)
                rounds.append(Round(part, slots, shard.halo_ids[slots]))
    return tuple(rounds)


def _spans(num_rows: int, count: int) -> list[slice]:
    """Rows divided into `count` runs of nearly equal length."""
    return [slice(num_rows * k // count, num_rows * (k + 1) // count) for k in range(count)]


def _bounds(ascending: Tensor, span: slice) -> tuple[int, int]:
    """Where the numbers of a span stand in an ascending vector."""
    ends = torch.searchsorted(ascending, torch.tensor([span.start, span.stop], device=ascending.device))
    return int(ends[0]), int(ends[1])


def _within(rows: Rows, span: slice) -> Rows:
    """Those of some ascending rows that lie in a span."""
    if isinstance(rows, slice):
        start = max(rows.start, span.start)
        return slice(start, max(start, min(rows.stop, span.stop)))
    low, high = _bounds(rows, span)
    return rows[low:high]


def _hull(several: Iterable[Rows]) -> slice:
    """The span in which some rows lie."""
    ends = [
        (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
        for rows in several
        if num_rows(rows)
    ]
    return slice(min(start for start, _ in ends), max(stop for _, stop in ends)) if ends else slice(0, 0)


def _piece(rows: Rows, places: slice) -> Rows:
    """Those of some rows that stand at consecutive places."""
    if isinstance(rows, slice):
        return slice(rows.start + places.start, rows.start + places.stop)
    return rows[places]


def _row_totals(edges: Edges) -> Tensor:
    totals = [row_sums(block.csr) for block in edges.blocks()]
    return torch.stack(totals).sum(0) if len(totals) > 1 else totals[0]


def _map(edges: Edges, change: Any) -> Edges:
    return Edges(tuple(map(change, edges.own)), tuple(map(change, edges.rounds)))
