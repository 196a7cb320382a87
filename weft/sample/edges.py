"""What a worker samples from: the in-edges of its own vertices, with both ends in one numbering of the whole graph.

Vertices are numbered by where they stand: all of worker 0's rows, then all of worker 1's, and so on. Who owns a
vertex, and which of its rows it is, follows from that number alone. Draws are keyed by global ids instead, so that
they do not depend on where anything stands.
"""

from functools import cached_property

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.files import drop_pages
from weft.graph.graph import CSR
from weft.kernels.sampling import InEdges, merge_sides
from weft.partition import Shard
from weft.partition.shard import filter_csr, row_numbers

MOST_VERTICES = 2**31
_PIECE = 1 << 20  # rows that are looked through at a time


class Standing:
    """Where every vertex stands: worker q's rows are those from starts[q] on."""

    def __init__(self, shard: Shard, comm: Communicator, positions: Tensor | None = None) -> None:
        """`positions`: those of all vertices by global id, int [N], where a file has them."""
        if shard.num_global_nodes >= MOST_VERTICES:
            raise UserError(
                f"{shard.graph_name} has {shard.num_global_nodes} vertices: mini-batch plans number them with 31 bits"
            )
        sizes = comm.all_gather(torch.tensor([shard.num_nodes]), "control", "rows of every worker").flatten()
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(sizes, 0)])
        self.own = range(int(self.starts[comm.worker]), int(self.starts[comm.worker + 1]))
        self.num_nodes = int(self.starts[-1])
        self._ids, self._comm, self._positions = shard.global_ids, comm, positions

    def of_ids(self, ids: Tensor) -> Tensor:
        """Where vertices stand that are known by their global ids, int32. All workers make the first call together."""
        if self._positions is None:
            longest = int(self.starts.diff().max())
            padded = torch.full((longest,), -1, dtype=torch.int64)
            padded[: self._ids.numel()] = self._ids
            everyone = self._comm.all_gather(padded, "control", "ids of all vertices").flatten()
            self._positions = torch.empty(self.num_nodes, dtype=torch.int32)
            self._positions[everyone[everyone >= 0]] = torch.arange(self.num_nodes, dtype=torch.int32)
        return self._positions[ids].int()

    def owners(self, nodes: Tensor) -> Tensor:
        """The worker of each vertex."""
        return torch.searchsorted(self.starts[1:].to(nodes.dtype), nodes, right=True)

    def of_halo(self, shard: Shard) -> Tensor:
        """Where the vertices of a shard's halo stand, int32 [H]."""
        owners = torch.repeat_interleave(torch.arange(shard.num_workers), torch.tensor(shard.halo_counts))
        return (self.starts[owners] + shard.halo_rows).int()


class Neighbours:
    """The in-edges of this worker's vertices, ready to be sampled.

    With `loops_apart` edges from a vertex to itself are none of them: layers that give every vertex one loop of their
    own want it always, not when it happens to be drawn.
    """

    def __init__(self, shard: Shard, standing: Standing, loops_apart: bool) -> None:
        self.loop_weight: Tensor | None = None
        local, loop = shard.local, find_loops(shard.local)
        self.has_loops = loop is not None and not loops_apart
        if loop is not None and loops_apart:
            if local.weight is not None:
                self.loop_weight = torch.ones(local.num_rows, dtype=local.weight.dtype)
                self.loop_weight[local.indices[loop].long()] = local.weight[loop]
            local = filter_csr(local, ~loop)
        self.ids = torch.cat([shard.global_ids, shard.halo_ids])
        own = torch.arange(standing.own.start, standing.own.stop, dtype=torch.int32)
        self.address = torch.cat([own, standing.of_halo(shard)])  # int32 [known]
        self.csr = _merged(local, shard, self.ids) if shard.num_halo else local
        weight = None if self.csr.weight is None else self.csr.weight.float().contiguous()
        self.edges = InEdges(self.csr.indptr, self.csr.indices, weight, shard.global_ids, self.ids)

    @cached_property
    def weight_sums(self) -> Tensor | None:
        """The sum of each row's weights, float64 [N]."""
        if self.csr.weight is None:
            return None
        sums = torch.zeros(self.csr.num_rows, dtype=torch.float64)
        return sums.index_add_(0, row_numbers(self.csr.indptr), self.csr.weight.double())

    @cached_property
    def symmetric_scale(self) -> Tensor:
        """1 / sqrt of each row's weights and its loop's, as GCN's coefficients want it, float64 [N]."""
        totals = self.csr.degrees().double() if self.weight_sums is None else self.weight_sums
        totals = totals + (1.0 if self.loop_weight is None else self.loop_weight.double())
        return torch.where(totals > 0, totals.clamp(min=1e-300).rsqrt(), 0.0)


def find_loops(csr: CSR) -> Tensor | None:
    """Which edges go from a row to itself, bool [E]; None: none does. Looked for piece by piece: there may be many."""
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
        """What was read of a file may not be needed again for long."""
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
