"""What a worker samples from: the in-edges of its own vertices, their sources numbered as own rows and halo slots."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.csr import CSR, filter_csr, inverse_sqrt, last_loops, row_numbers, row_sums
from weft.graph.files import drop_pages
from weft.kernels.sampling import InEdges, merge_sides
from weft.partitioning import Shard
from weft.sample.book import PartitionBook
from weft.sample.history import History, refuse_weighted_loops
from weft.sample.moments import Sees

_PIECE = 1 << 20  # rows that are looked through at a time


class Neighbours:
    """The in-edges of this worker's vertices, ready to be sampled.

    `loops_apart` leaves out edges from a vertex to itself: layers that give every vertex one loop of their own want it
    always, not when it happens to be drawn. `by_weight` leaves out edges of weight 0: no draw takes one, so that they
    count in no degree. `sees`: what moments see of them; where not all, `history` is what is sampled from.
    """

    def __init__(
        self, shard: Shard, book: PartitionBook, loops_apart: bool, by_weight: bool = False, sees: Sees = "all"
    ) -> None:
        self.loop_weight: Tensor | None = None
        self.history: History | None
        self._graph_name = shard.graph_name
        if sees == "all":
            shard = replace(shard, local=replace(shard.local, time=None), remote=replace(shard.remote, time=None))
        if by_weight:
            shard = replace(shard, local=_with_weight(shard.local, shard), remote=_with_weight(shard.remote, shard))
        local, loop = shard.local, find_loops(shard.local)
        self.has_loops = loop is not None and not loops_apart
        if loop is not None and loops_apart:
            refuse_weighted_loops(local, shard.graph_name)
            if local.weight is not None:
                self.loop_weight = torch.ones(local.num_rows, dtype=local.weight.dtype)
                last = last_loops(loop, row_numbers(local.indptr))
                self.loop_weight[local.indices[last].long()] = local.weight[last]
            local = filter_csr(local, ~loop)
        self.ids = torch.cat([shard.global_ids, shard.halo_ids])  # int64, of own rows and then of halo slots
        self.positions = torch.cat([book.own_positions(), book.halo_positions(shard)])  # int32, as `ids`
        self.csr = _merged(local, shard, self.ids) if shard.num_halo else local
        self.history = None
        if sees != "all":
            self.history = History(self.csr, shard.global_ids, self.ids, sees, shard.graph_name)
            self.csr, self.edges = self.history.csr, self.history.edges
            return
        weight = None if self.csr.weight is None else self.csr.weight.float().contiguous()
        self.edges = InEdges(self.csr.indptr, self.csr.indices, weight, shard.global_ids, self.ids)

    @cached_property
    def weight_sums(self) -> Tensor | None:
        """The sum of each row's weights, float64 [N]."""
        if self.csr.weight is None:
            return None
        return row_sums(self.csr)

    @cached_property
    def symmetric_scale(self) -> Tensor:
        """1 / sqrt of each row's weights and its loop's, as GCN's coefficients want it, float64 [N]."""
        totals = self.csr.degrees().double() if self.weight_sums is None else self.weight_sums
        totals = totals + (1.0 if self.loop_weight is None else self.loop_weight.double())
        return inverse_sqrt(totals, self.ids, self._graph_name)


def _with_weight(csr: CSR, shard: Shard) -> CSR:
    """The edges of positive weight."""
    assert csr.weight is not None
    weight = csr.weight
    bad = ~((weight >= 0) & torch.isfinite(weight))
    if bool(bad.any()):
        edge = int(bad.nonzero()[0])
        vertex = int(shard.global_ids[torch.searchsorted(csr.indptr, edge, right=True) - 1])
        raise UserError(
            f"sample.method=weighted draws edges by their weight, and an edge into vertex {vertex} has weight "
            f"{float(weight[edge]):g}: give weights of 0 or more, or use sample.method=neighbour"
        )
    zero = weight == 0
    return filter_csr(csr, ~zero) if bool(zero.any()) else csr


def find_loops(csr: CSR) -> Tensor | None:
    """Which edges go from a row to itself, bool [E]; None: none does. It goes piece by piece to save memory."""
    found = []
    for start in range(0, csr.num_rows, _PIECE):
        rows = csr.indptr[start : start + _PIECE + 1]
        mine = csr.indices[int(rows[0]) : int(rows[-1])]
        loop = mine == row_numbers(rows - rows[0]).add_(start)
        found.append(loop.nonzero().squeeze(1) + int(rows[0]))
    edges = torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
    if not edges.numel():
        return None
    mask = torch.zeros(csr.num_edges, dtype=torch.bool)
    mask[edges] = True
    return mask


def _merged(local: CSR, shard: Shard, ids: Tensor) -> CSR:
    """Edges from own vertices and from the halo's, whose columns come after."""
    carries, remote = bool(local.edge_data), shard.remote

    def let_go() -> None:
        """Drops pages that were read of files: they are not needed again for long."""
        for csr in (shard.local, remote):
            for edges in (csr.indices, *csr.edge_data.values()):
                drop_pages(edges.data_ptr())

    let_go()
    sides = (local.indptr, local.indices), (remote.indptr, remote.indices)
    indptr, indices, order = merge_sides(*sides, local.num_cols, ids, carries, let_go)
    data = {}
    if order is not None:
        data = {name: torch.cat([mine, remote.edge_data[name]])[order] for name, mine in local.edge_data.items()}
        let_go()
    return CSR(indptr, indices, ids.numel(), **data)
