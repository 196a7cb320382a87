"""The order of a shard's rows: by how far they are from the loss, or by how long they wait for other workers.

A vertex has depth d when a path of d edges, and none shorter, leads from it to a vertex of the loss. Of L layers,
layer k needs to compute the vertices of depth L - 1 - k or less: where rows are ordered by depth, its first ones.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.comm import Communicator, Route, build_route, raw, start_exchange
from weft.comm.pairwise import partners
from weft.graph.csr import invert, row_numbers, sort_pairs, take_rows
from weft.graph.vertexdata import select_vertices
from weft.partitioning import Shard


@dataclass(frozen=True)
class Reach:
    """How far each owned vertex is from the vertices of the loss, against the direction of edges."""

    depth: Tensor  # int64 [N] of every owned vertex; more than `layers`: the loss does not depend on it
    layers: int
    spared: float  # the share of all layers' rows, of all workers, that need not be computed

    @property
    def sizes(self) -> list[int]:
        """How many owned rows go into the first layer, and how many come out of each."""
        return [int((self.depth <= most).sum()) for most in range(self.layers, -1, -1)]


def find_reach(shard: Shard, comm: Communicator, wanted: Tensor, layers: int) -> Reach:
    """How far each vertex is from those of the loss (`wanted`, bool [N]), up to `layers`. Every worker calls it."""
    route = build_route(comm, shard.halo_rows, shard.halo_counts, shard.num_nodes)
    depth = torch.where(wanted, 0, layers + 1)
    for distance in range(1, layers + 1):
        rows = depth < distance
        read = torch.zeros(shard.num_nodes, dtype=torch.bool)
        read[shard.local.indices[_of_rows(shard.local.indptr, rows)].long()] = True
        halo = torch.zeros(shard.num_halo, 1)
        halo[shard.remote.indices[_of_rows(shard.remote.indptr, rows)].long()] = 1.0
        read |= _send(comm, route.transpose(), halo, "vertices that are read").squeeze(1) > 0
        depth[read & (depth > distance)] = distance
    reach = Reach(depth, layers, 0.0)
    counts = torch.tensor([sum(reach.sizes[1:]), layers * shard.num_nodes], dtype=torch.float64)
    comm.all_reduce(counts, "control", "rows that are needed")
    return replace(reach, spared=1.0 - float(counts[0] / counts[1].clamp(min=1)))


def order_for_overlap(shard: Shard, comm: Communicator) -> Shard:
    """The shard with its rows ordered for the overlapped schedule. Every worker calls it.

    Rows without remote in-edges come first, the others by the last worker whose rows they wait for. Among rows that
    wait for the same worker, those that are read elsewhere lie side by side, by the last worker that reads them.
    """
    me, workers = comm.worker, comm.num_workers
    route = build_route(comm, shard.halo_rows, shard.halo_counts, shard.num_nodes)
    turn_of = torch.zeros(workers, dtype=torch.int64)  # the turn in which rows of each worker arrive
    read = torch.zeros(shard.num_nodes, dtype=torch.int64)  # the turn of the last worker that reads each row
    for turn, (to, by) in enumerate(partners(me, workers), 1):
        turn_of[by] = turn
        rows = route.send_rows[to]
        read[rows if isinstance(rows, slice) else rows.cpu()] = turn
    of_slot = torch.repeat_interleave(turn_of, torch.tensor(shard.halo_counts))
    waits = torch.zeros(shard.num_nodes, dtype=torch.int64)
    waits.scatter_reduce_(0, row_numbers(shard.remote.indptr), of_slot[shard.remote.indices.long()], "amax")
    unread = torch.where(waits > 0, workers * workers + waits, -1)
    return order_by(shard, comm, torch.where(read > 0, workers * waits + read, unread))


def order_by(shard: Shard, comm: Communicator, rank: Tensor) -> Shard:
    """The same shard, its rows in the order of their rank. Every worker calls it."""
    route = build_route(comm, shard.halo_rows, shard.halo_counts, shard.num_nodes)
    order = torch.argsort(rank, stable=True)
    position = invert(order)
    halo_rows = _send(comm, route, position.double().unsqueeze(1), "new row numbers").squeeze(1).long()
    owners = torch.repeat_interleave(torch.arange(shard.num_workers), torch.tensor(shard.halo_counts))
    slots = sort_pairs(owners, halo_rows)
    local, remote = take_rows(shard.local, order), take_rows(shard.remote, order)
    return replace(
        shard,
        global_ids=shard.global_ids[order],
        local=replace(local, indices=position.int()[local.indices.long()]),
        remote=replace(remote, indices=invert(slots).int()[remote.indices.long()]),
        halo_ids=shard.halo_ids[slots],
        halo_rows=halo_rows[slots],
        vertex_data=select_vertices(shard.vertex_data, order),
    )


def _of_rows(indptr: Tensor, rows: Tensor) -> Tensor:
    """Which edges lead into the rows that are marked, bool [E]."""
    return torch.repeat_interleave(rows, indptr[1:] - indptr[:-1])


def _send(comm: Communicator, route: Route, rows: Tensor, what: str) -> Tensor:
    return start_exchange(comm, route, rows.to(comm.device), raw, "topology", what).finish().cpu()
