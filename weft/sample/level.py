"""One hop of a minibatch as layers see it: a topology without rounds, whose sums stand for those over all in-edges."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.aggregate import waiting
from weft.aggregate.blocks import Block
from weft.aggregate.coefficients import check_by, check_symmetric, reciprocal
from weft.aggregate.edge_data import means_of_edges, with_loops_carrying
from weft.aggregate.rounds import Round, Schedule
from weft.aggregate.topology import By, Edges, MessageScale, Topology, Weight
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.csr import CSR, by_relation, row_sums
from weft.kernels import gather
from weft.kernels.checks import trust_csr
from weft.kernels.sampling import split_columns, with_loops
from weft.partitioning import Shard
from weft.sample.batch import Hop


class SampledLevel:
    """The sampled in-edges of some vertices, weighed so that a sum over them has the expectation of the whole sum.

    Each drawn edge counts 1 / p times in a sum, p being the probability with which it was drawn: k / d of d in-edges,
    or by weight min(1, w / interval). A mean is that sum divided by what the whole mean divides by, d or the sum of all
    weights; one by relation, where those are not known, by the sum over what was drawn.
    """

    of_minibatch = True
    final_rows = cached_property(waiting.final_rows)
    home_spans = cached_property(waiting.home_spans)
    sent_spans = cached_property(waiting.sent_spans)

    def __init__(
        self, base: Topology, hop: Hop, ids: Tensor, scale: Tensor | None, counted: Tensor | None = None
    ) -> None:
        """`ids`, `scale` and `counted` are of the rows that go in, and there may be more of them."""
        self._base, self.counted = base, counted
        self.hop, self.num_in, self.num_out = hop, hop.num_in, hop.csr.num_rows
        self.ids = ids[: self.num_in]
        self._scale = None if scale is None else scale[: self.num_in]
        self.spans = (slice(0, self.num_in),)
        self.rounds: tuple[Round, ...] = ()
        if hop.remote is not None:
            self.rounds = (Round(hop.remote.route, slice(0, hop.remote.ids.numel()), hop.remote.ids),)
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

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        check_by(self.shard, by, weight)
        if isinstance(weight, Tensor):
            raise UserError(
                "a constant for every edge of the shard has no meaning for edges that are sampled: give the graph "
                'weights and use weight="edge", or train over the full graph'
            )
        name = (reduce, weight, dtype == torch.float64, by)
        if name not in self._made:
            self._made[name] = self._placed(self._block(reduce, weight, by).cast(dtype))
        return self._made[name]

    def _placed(self, block: Block) -> Edges:
        """Edges from rows that are here, and from those that come."""
        if not self.rounds:
            return Edges((block,), ())
        own, coming = split_block(block, self.num_in)
        return Edges((own,), (coming,))

    def squared(self) -> "SampledLevel":
        return SampledLevel(self._base, padded(self.hop, self.num_in), self.ids, self._scale, self.counted)

    @cached_property
    def plain(self) -> Edges:
        return self._placed(Block(self.hop.csr))

    def mean_looped(self, dtype: torch.dtype) -> Edges:
        """A loop carries the mean of what the drawn edges carry, each counted as often as it counts in a sum."""
        self._check_loops()
        double = dtype == torch.float64
        if double not in self._mean_looped:
            csr = self.hop.csr
            looped = with_loops_carrying(csr, means_of_edges([csr], [self._edge_weights(None)], dtype))
            trust_csr(looped.indptr, looped.indices, looped.num_cols)
            self._mean_looped[double] = self._placed(Block(looped))
        return self._mean_looped[double]

    @cached_property
    def in_degrees(self) -> Tensor:
        degrees = self.hop.degrees.long()
        return degrees if self.hop.left_out is None else degrees - self.hop.left_out

    @cached_property
    def _takes_all(self) -> bool:
        """Every row has all of its in-edges."""
        fanout = self.hop.fanout
        return fanout < 0 or self.num_out == 0 or int(self.hop.degrees.max()) <= fanout

    @cached_property
    def message_scale(self) -> MessageScale:
        if self._takes_all:
            return MessageScale(self.in_degrees)
        if self.hop.intervals is not None:  # how many in-edges a drawn one stands for differs from edge to edge
            return MessageScale(self.in_degrees, intervals=self.hop.intervals)
        if self.hop.left_out is not None:  # some of what was drawn is not seen
            return MessageScale(self.hop.csr.degrees(), self._stands_for)
        return MessageScale(self.in_degrees.clamp(max=self.hop.fanout), self._stands_for)

    @property
    def _intervals(self) -> Tensor | None:
        """Of each row, where its edges were drawn by weight and not all of them, float64 [N]."""
        return None if self._takes_all else self.hop.intervals

    @cached_property
    def _stands_for(self) -> Tensor | None:
        """How many in-edges of its row each drawn edge stands for, float64 [N]; None: one, or it differs by edge."""
        if self._takes_all or self.hop.intervals is not None:
            return None
        degrees, fanout = self.hop.degrees, self.hop.fanout
        return degrees.double().clamp(min=fanout) / fanout if fanout else torch.zeros(self.num_out, dtype=torch.float64)

    def _block(self, reduce: str, weight: Weight, by: By) -> Block:
        csr = replace(self.hop.csr, weight=None)
        if reduce == "attend":
            return Block(self._with_loops(None))
        if reduce == "attend_plain":
            return Block(csr)
        if weight == "symmetric":
            check_symmetric(reduce)
            assert self._scale is not None, "symmetric coefficients want the degrees of sources"
            scale = self._scale
            if self.hop.remote is not None:
                assert self.hop.remote.scale is not None
                scale = torch.cat([scale, self.hop.remote.scale])
            return Block(self._with_loops(self._edge_weights("edge")), scale[: self.num_out], scale)
        weights, rows = self._factors(weight)
        if by is not None:
            return self._related(reduce, weights, rows)
        if reduce == "max":
            return Block(replace(csr, weight=self.hop.csr.weight if weight == "edge" else None))
        if reduce == "mean":
            total = self._totals(weight)
            rows = torch.where(total != 0, (1.0 if rows is None else rows) / total, 0.0)
        return Block(replace(csr, weight=weights), rows)

    def _related(self, reduce: str, weights: Tensor | None, rows: Tensor | None) -> Block:
        """A row for every (vertex, relation); a mean is one over what was drawn of the relation."""
        count = self.shard.num_relations
        csr = by_relation(replace(self.hop.csr, weight=weights), count)
        if reduce == "mean":
            total = row_sums(csr)
            return Block(csr, reciprocal(total))
        return Block(csr, None if rows is None else rows.repeat_interleave(count))

    def _factors(self, weight: Weight) -> tuple[Tensor | None, Tensor | None]:
        """Coefficients that make sums over drawn edges stand for all: of each edge, and of each row; None: all 1."""
        given = self.hop.csr.weight if weight == "edge" else None
        if self._intervals is None:
            return given, self._stands_for
        assert self.hop.csr.weight is not None
        drawn_by = self.hop.csr.weight.double()
        largest = torch.maximum(self._intervals.repeat_interleave(self.hop.csr.degrees()), drawn_by)
        return largest / drawn_by if given is None else largest, None

    def _edge_weights(self, weight: Weight) -> Tensor | None:
        """One coefficient for each drawn edge, rows' factors included; None: all are 1."""
        edges, rows = self._factors(weight)
        if rows is None:
            return edges
        factor = rows.repeat_interleave(self.hop.csr.degrees())
        return factor if edges is None else factor * edges

    def _totals(self, weight: Weight) -> Tensor:
        """What a mean divides by: all in-edges of each row, or the sum of their weights."""
        if weight == "edge" and self.hop.weight_sums is not None:
            return self.hop.weight_sums
        return self.in_degrees.double()

    def _check_loops(self) -> None:
        if self.hop.loops_inside:
            raise UserError(
                f"{self.shard.graph_name} has edges from vertices to themselves, which may or may not be drawn, and "
                "this layer gives every vertex one of its own: say so on the layer with `traits = "
                "LayerTraits(adds_loops=True)`, or remove them from the graph"
            )

    def _with_loops(self, weights: Tensor | None) -> CSR:
        """Every vertex with one loop, the first of its edges."""
        self._check_loops()
        hop = self.hop
        loops = hop.loop_weight if weights is not None else None
        indptr, indices, weight = with_loops(
            hop.csr.indptr,
            hop.csr.indices,
            None if weights is None else weights.double(),
            None if loops is None else loops.double(),
        )
        trust_csr(indptr, indices, hop.csr.num_cols)
        return CSR(indptr, indices, hop.csr.num_cols, weight)


def split_block(block: Block, border: int) -> tuple[Block, Block]:
    """The edges from the columns before a border, and from those after it."""
    csr, found = block.csr, []
    carried = csr.edge_data
    sides = split_columns(csr.indptr, csr.indices, border, stood=bool(carried))
    for side, span in zip(sides, (slice(0, border), slice(border, csr.num_cols)), strict=True):
        data = {} if side.stood is None else {name: gather(all, side.stood) for name, all in carried.items()}
        part = CSR(side.indptr, side.indices, span.stop - span.start, **data)
        trust_csr(part.indptr, part.indices, part.num_cols)
        scale = None if block.col_scale is None else block.col_scale[span]
        found.append(Block(part, block.row_scale, scale))
    first, second = found
    return first, second


def padded(hop: Hop, num_rows: int) -> Hop:
    """The same edges with `num_rows` rows; those at the end have none."""
    more = num_rows - hop.csr.num_rows
    csr = replace(hop.csr, indptr=torch.cat([hop.csr.indptr, hop.csr.indptr[-1:].expand(more)]))

    def longer(fact: Tensor | None) -> Tensor | None:
        return None if fact is None else torch.cat([fact, fact.new_zeros(more)])

    degrees = longer(hop.degrees)
    assert degrees is not None
    weights, loops, intervals = longer(hop.weight_sums), longer(hop.loop_weight), longer(hop.intervals)
    hop = replace(hop, csr=csr, degrees=degrees, weight_sums=weights, loop_weight=loops, intervals=intervals)
    return replace(hop, left_out=longer(hop.left_out))
