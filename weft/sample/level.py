"""One hop of a minibatch as layers see it: a topology without rounds, whose sums stand for those over all in-edges."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.aggregate.blocks import Block, by_relation, row_sums
from weft.aggregate.topology import NOT_CACHED, By, Edges, Round, Topology, Weight
from weft.errors import UserError
from weft.graph.graph import CSR
from weft.kernels import gather
from weft.kernels.checks import trust_csr
from weft.kernels.sampling import split_columns, with_loops
from weft.sample.batch import Hop, picking_hop


class SampledLevel(Topology):
    """The sampled in-edges of some vertices, weighed so that a sum over them has the expectation of the whole sum.

    Of d in-edges of which k are drawn, each counts d / k times in a sum; a mean is one over what was drawn.
    """

    is_whole = False
    narrows = True

    def __init__(self, base: Topology, hop: Hop, ids: Tensor, scale: Tensor | None) -> None:
        """`ids` and `scale` are of the rows that go in, and there may be more of them."""
        self.base, self.shard, self.comm, self.schedule = base, base.shard, base.comm, base.schedule
        self.hop, self.num_in, self.num_out = hop, hop.num_in, hop.csr.num_rows
        self.ids = ids[: self.num_in]
        self._scale = None if scale is None else scale[: self.num_in]
        self.spans = (slice(0, self.num_in),)
        self.rounds = ()
        if hop.away is not None:
            self.rounds = (Round(hop.away.route, slice(0, hop.away.ids.numel()), hop.away.ids),)
        self._made = {}

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        if by is not None:
            self._check_by(by, weight)
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

    def gathering(self) -> tuple[Topology, Topology]:
        """All rows that the edges read, own ones first; and the edges between those."""
        away = self.hop.away
        assert away is not None
        everything = torch.arange(self.hop.csr.num_cols, dtype=torch.int32)
        picking = SampledLevel(self.base, picking_hop(everything, away, self.num_in), self.ids, None)
        ids = torch.cat([self.ids, away.ids])
        scale = None if self._scale is None or away.scale is None else torch.cat([self._scale, away.scale])
        return picking, SampledLevel(self.base, replace(self.hop, away=None), ids, scale)

    def squared(self) -> Topology:
        return _Padded(self)

    @cached_property
    def plain(self) -> Edges:
        return self._placed(Block(self.hop.csr))

    @cached_property
    def in_degrees(self) -> Tensor:
        return self.hop.degrees.long()

    @cached_property
    def mean_counts(self) -> Tensor:
        return self.hop.csr.degrees()

    @cached_property
    def sum_scale(self) -> Tensor | None:
        """How many in-edges each drawn one stands for, float64 [R]; None: every row has all of its own."""
        degrees, fanout = self.hop.degrees, self.hop.fanout
        if fanout < 0 or self.num_out == 0 or int(degrees.max()) <= fanout:
            return None
        return degrees.double().clamp(min=fanout) / fanout if fanout else torch.zeros(self.num_out, dtype=torch.float64)

    def _block(self, reduce: str, weight: Weight, by: By) -> Block:
        csr = replace(self.hop.csr, weight=None)
        if reduce == "attend":
            return Block(self._with_loops(None))
        if reduce == "attend_plain":
            return Block(csr)
        if weight == "symmetric":
            if reduce != "sum":
                raise UserError('weight="symmetric" is a sum with fixed coefficients: use reduce="sum"')
            assert self._scale is not None, "symmetric coefficients want the degrees of sources"
            scale = self._scale
            if self.hop.away is not None:
                assert self.hop.away.scale is not None
                scale = torch.cat([scale, self.hop.away.scale])
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
            return Block(csr, torch.where(total != 0, 1.0 / total, 0.0))
        return Block(csr, None if rows is None else rows.repeat_interleave(count))

    def _factors(self, weight: Weight) -> tuple[Tensor | None, Tensor | None]:
        """Coefficients that make sums over drawn edges stand for all: of each edge, and of each row."""
        given = self.hop.csr.weight if weight == "edge" else None
        if self.sum_scale is None or self.hop.method != "weighted":
            return given, self.sum_scale
        return self._edge_weights(weight), None

    def _edge_weights(self, weight: Weight) -> Tensor | None:
        """One coefficient for each drawn edge, rows' factors included; None: all are 1."""
        given = self.hop.csr.weight if weight == "edge" else None
        if self.sum_scale is None:
            return given
        if self.hop.method == "weighted":  # drawn in proportion to their weights, they count in inverse proportion
            assert self.hop.csr.weight is not None and self.hop.weight_sums is not None
            drawn = self.hop.csr.degrees()
            share = (self.hop.weight_sums / drawn.clamp(min=1)).repeat_interleave(drawn)
            whole = (self.hop.degrees == drawn).repeat_interleave(drawn)
            counted = torch.where(whole, 1.0, share / self.hop.csr.weight.double())
            return counted if given is None else counted * given
        factor = self.sum_scale.repeat_interleave(self.hop.csr.degrees())
        return factor if given is None else factor * given

    def _totals(self, weight: Weight) -> Tensor:
        """What a mean divides by: all in-edges of each row, or the sum of their weights."""
        if weight == "edge" and self.hop.weight_sums is not None:
            return self.hop.weight_sums
        return self.hop.degrees.double()

    def _with_loops(self, weights: Tensor | None) -> CSR:
        """Every vertex with one loop, the first of its edges."""
        hop = self.hop
        if hop.loops_inside:
            raise UserError(
                f"{self.shard.graph_name} has edges from vertices to themselves, which may or may not be drawn, and "
                "this layer gives every vertex one of its own: say so with `adds_loops = True` on the layer (a "
                "weft.layers.Layer), or remove them from the graph"
            )
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


class CachedLevel(Topology):
    """Where the aggregates of the input are known, the first layer needs no edges: rows come out as they go in."""

    is_whole = False

    def __init__(self, base: Topology, ids: Tensor) -> None:
        self.base, self.shard, self.comm, self.schedule = base, base.shard, base.comm, base.schedule
        self.num_in = self.num_out = ids.numel()
        self.ids = ids
        self.spans = (slice(0, self.num_in),)
        self.rounds = ()
        self._made = {}

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        raise UserError(NOT_CACHED)

    @property
    def plain(self) -> Edges:
        raise UserError(NOT_CACHED)


class _Padded(SampledLevel):
    """As many rows come out as go in; the later ones have no edges."""

    def __init__(self, level: SampledLevel) -> None:
        hop, more = level.hop, level.num_in - level.num_out
        csr = replace(hop.csr, indptr=torch.cat([hop.csr.indptr, hop.csr.indptr[-1:].expand(more)]))

        def padded(fact: Tensor | None) -> Tensor | None:
            return None if fact is None else torch.cat([fact, fact.new_zeros(more)])

        degrees = padded(hop.degrees)
        assert degrees is not None
        weights, loops = padded(hop.weight_sums), padded(hop.loop_weight)
        padded_hop = replace(hop, csr=csr, degrees=degrees, weight_sums=weights, loop_weight=loops)
        super().__init__(level.base, padded_hop, level.ids, level._scale)
