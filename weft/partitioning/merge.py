"""Several parts made into one shard, when there are fewer workers than parts."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.graph.csr import filter_csr, merge_rows, sort_pairs, stack_rows
from weft.partitioning.shard import Edges


def merge_parts(
    parts: Sequence[Edges],
    global_ids: Sequence[Tensor],
    group: range,
    sizes: Sequence[int],
    num_workers: int,
) -> Edges:
    """The edges of the parts in `group`, as those of one worker.

    In: each part's edges, whose halo names (part, row in that part); sizes: the vertices of every part.
    Out: halo owners are workers, halo rows local ids there, edges between two parts of the group are local.
    """
    num_parts = len(sizes)
    worker_of = torch.arange(num_parts) * num_workers // num_parts
    me = int(worker_of[group.start])
    before = torch.cumsum(torch.tensor(sizes), 0) - torch.tensor(sizes)
    first_part = torch.searchsorted(worker_of, torch.arange(num_workers))  # of every worker
    offset = before - before[first_part[worker_of]]  # of every part, in its worker's rows
    num_rows = sum(sizes[part] for part in group)

    owners = [worker_of[edges.halo_owners] for edges in parts]
    rows = [edges.halo_rows + offset[edges.halo_owners] for edges in parts]
    slots, halo = _join_halos(parts, owners, rows, me)
    local, remote = [], []
    for part, edges, ids, owner, row, slot in zip(group, parts, global_ids, owners, rows, slots, strict=True):
        start = int(offset[part])
        own = edges.local if start == 0 else replace(edges.local, indices=edges.local.indices + start)
        inside = owner == me
        if bool(inside.any()):
            near = inside[edges.remote.indices.long()]
            entering, leaving = filter_csr(edges.remote, near), filter_csr(edges.remote, ~near)
            keys = torch.cat([ids[edges.local.indices.long()], edges.halo_ids[entering.indices.long()]])
            entering = replace(entering, indices=row.int()[entering.indices.long()])
            own = merge_rows(own, entering, keys)
        else:
            leaving = edges.remote
        local.append(replace(own, num_cols=num_rows))
        if len(parts) > 1:
            leaving = replace(leaving, indices=slot[leaving.indices.long()])
        remote.append(replace(leaving, num_cols=halo[0].numel()))
    return Edges(stack_rows(local), stack_rows(remote), *halo)


def _join_halos(
    parts: Sequence[Edges], owners: Sequence[Tensor], rows: Sequence[Tensor], me: int
) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """For every part the new slot of each old one (-1: now local), and the joint halo (ids, owners, rows)."""
    if len(parts) == 1:  # merging others' rows leaves the order of the slots as it is
        return [torch.empty(0, dtype=torch.int32)], (parts[0].halo_ids, owners[0], rows[0])
    owner, row = torch.cat(list(owners)), torch.cat(list(rows))
    ids = torch.cat([edges.halo_ids for edges in parts])
    outside = (owner != me).nonzero().squeeze(1)
    owner, row, ids = owner[outside], row[outside], ids[outside]
    order = sort_pairs(owner, row)
    owner, row, ids = owner[order], row[order], ids[order]
    new = torch.ones(ids.numel(), dtype=torch.bool)
    new[1:] = ids[1:] != ids[:-1]  # equal (owner, row) means equal vertex
    slot = torch.full((sum(edges.halo_ids.numel() for edges in parts),), -1, dtype=torch.int32)
    slot[outside[order]] = (torch.cumsum(new, 0) - 1).int()
    return list(torch.split(slot, [edges.halo_ids.numel() for edges in parts])), (ids[new], owner[new], row[new])
