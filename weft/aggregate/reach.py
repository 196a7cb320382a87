"""Rows of a shard in an order that serves: each layer of a training pass needs its first ones only, or they wait last.

A vertex has depth d when a path of d edges, and none shorter, leads from it to a vertex of the loss. Of L layers,
layer k needs to compute the vertices of depth L - 1 - k or less.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.comm import Communicator, Route, build_route, raw, start_exchange
from weft.comm.turns import partners
from weft.partition import Shard
from weft.partition.shard import invert, pick_rows, row_numbers, select, sort_pairs


@dataclass(frozen=True)
class Reach:
    depth: Tensor  # int64 [N] of every owned vertex; more than `layers`: the loss does not depend on it
    layers: int
    spared: float  # the share of all layers' rows, over all workers, that need not be computed

    @property
    def sizes(self) -> list[int]:
        """How many owned rows go into the first layer, and how many come out of each."""
        return [int((self.depth <= most).sum()) for most in range(self.layers, -1, -1)]


def find_reach(shard: Shard, comm: Communicator, wanted: Tensor, layers: int) -> Reach:
    """wanted: bool [N], the vertices of the loss. Every worker calls it."""
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
    """Rows by whose rows they wait for last, those without remote in-edges first; then by who reads them last.

    Those that others read stand side by side. Every worker calls it.
    """
    me, workers = comm.worker, comm.num_workers
    route = build_route(comm, shard.halo_rows, shard.halo_counts, shard.num_nodes)
    turn_of = torch.zeros(workers, dtype=torch.int64)  # in which rows of each worker come
    read = torch.zeros(shard.num_nodes, dtype=torch.int64)  # in which the last of others' gradients come home
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
    local, remote = pick_rows(shard.local, order), pick_rows(shard.remote, order)
    return replace(
        shard,
        global_ids=shard.global_ids[order],
        local=replace(local, indices=position.int()[local.indices.long()]),
        remote=replace(remote, indices=invert(slots).int()[remote.indices.long()]),
        halo_ids=shard.halo_ids[slots],
        halo_rows=halo_rows[slots],
        x=select(shard.x, order),
        y=select(shard.y, order),
        train_mask=select(shard.train_mask, order, dim=-1),
        val_mask=select(shard.val_mask, order, dim=-1),
        test_mask=select(shard.test_mask, order, dim=-1),
    )


def _of_rows(indptr: Tensor, rows: Tensor) -> Tensor:
    """Which edges belong to the given rows, bool [E]."""
    return torch.repeat_interleave(rows, indptr[1:] - indptr[:-1])


def _send(comm: Communicator, route: Route, rows: Tensor, what: str) -> Tensor:
    return start_exchange(comm, route, rows.to(comm.device), raw, "topology", what).finish().cpu()
