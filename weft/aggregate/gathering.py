"""Rows and edges in one place: for layers that compute on plain matrices and know of no schedule.

The rows are those that this worker owns, and after them those that arrive, round by round; the edges are one block
between these.
"""

from functools import cached_property
from itertools import accumulate
from typing import NoReturn

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate import waiting
from weft.aggregate.blocks import Block
from weft.aggregate.rounds import Round, Schedule
from weft.aggregate.topology import By, Edges, MessageScale, Topology, Weight
from weft.comm import Communicator
from weft.graph.csr import CSR
from weft.partitioning import Shard


class RowGathering:
    """Edges that copy rows as they are: one for each row that is here, and one for each that arrives.

    A sum over them is all rows in one place. So rows travel as they do for any aggregate, and so do their gradients.
    """

    counted: Tensor | None = None
    final_rows = cached_property(waiting.final_rows)
    home_spans = cached_property(waiting.home_spans)
    sent_spans = cached_property(waiting.sent_spans)

    def __init__(self, base: Topology) -> None:
        self._base = base
        self.num_in = base.num_in
        self.num_out = base.num_in + sum(round.num_rows for round in base.rounds)
        self.ids = torch.cat([base.ids[: base.num_in], *(round.ids for round in base.rounds)])

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
    def spans(self) -> tuple[slice, ...]:
        return self._base.spans

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self._base.rounds

    @property
    def of_minibatch(self) -> bool:
        return self._base.of_minibatch

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        assert reduce == "sum" and weight is None and by is None, "rows are copied as they are"
        return self.plain

    @cached_property
    def plain(self) -> Edges:
        own = tuple(self._handed(span.start, span.stop - span.start) for span in self.spans)
        starts = arrival_starts(self)
        return Edges(own, tuple(self._handed(s, r.num_rows) for s, r in zip(starts, self.rounds, strict=True)))

    def mean_looped(self, dtype: torch.dtype) -> NoReturn:
        raise AssertionError("rows are copied as they are")

    @cached_property
    def in_degrees(self) -> Tensor:
        return torch.ones(self.num_out, dtype=torch.int64, device=self.ids.device)

    @property
    def message_scale(self) -> MessageScale:
        return MessageScale(self.in_degrees)

    def squared(self) -> Topology:
        raise AssertionError("gathered rows are handed to a layer, which does not aggregate them once more")

    def _handed(self, first: int, count: int) -> Block:
        """`count` columns, each the source of one row, from `first` on."""
        device = self.ids.device
        indptr = (torch.arange(self.num_out + 1, device=device) - first).clamp(0, count)
        return Block(CSR(indptr, torch.arange(count, dtype=torch.int32, device=device), count))


def arrival_starts(topology: Topology) -> list[int]:
    """Where each round's rows stand among those that are gathered."""
    return list(accumulate((r.num_rows for r in topology.rounds), initial=topology.num_in))[: len(topology.rounds)]


def joined(topology: Topology, edges: Edges) -> Block:
    """All of an aggregation's edges as one block, its columns being the rows that are gathered."""
    blocks = edges.blocks()
    if len(blocks) == 1:
        return blocks[0]
    starts = [span.start for span in topology.spans] + arrival_starts(topology)
    num_cols = topology.num_in + sum(round.num_rows for round in topology.rounds)
    columns = [block.csr.indices.long() + start for block, start in zip(blocks, starts, strict=True)]
    rows = torch.cat([block.destinations for block in blocks])
    indptr, indices, order = kernels.build_csr(torch.cat(columns), rows, num_cols, edges.num_rows)
    carried = {name: torch.cat([block.csr.edge_data[name] for block in blocks]) for name in blocks[0].csr.edge_data}
    csr = CSR(indptr, indices, num_cols, **{name: data[order] for name, data in carried.items()})
    scales = [block.col_scale for block in blocks if block.col_scale is not None]
    return Block(csr, blocks[0].row_scale, torch.cat(scales) if scales else None)


def edge_weights(block: Block, dtype: torch.dtype) -> Tensor:
    """Each edge's whole coefficient, [E]."""
    csr = block.csr
    weight = torch.ones(csr.num_edges, dtype=dtype) if csr.weight is None else csr.weight.to(dtype)
    if block.row_scale is not None:
        weight = weight * block.row_scale.to(dtype)[block.destinations]
    return weight if block.col_scale is None else weight * block.col_scale.to(dtype)[csr.indices.long()]
