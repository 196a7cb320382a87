"""Sampling in plain Python and torch: the same edges as the native kernels draw."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from weft.kernels.sampling import InEdges, Method, Sampled, SideEdges

_MASK = (1 << 64) - 1
FLOYD_MOST = 64


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _unit(random: int) -> float:
    return ((random >> 11) + 1) * 2.0**-53


def draw(key: int, degree: int, k: int) -> list[int]:
    """k of `degree` numbers."""
    if k > FLOYD_MOST:
        found: list[int] = []
        for at in range(degree):
            if (splitmix64((key + at) & _MASK) * (degree - at)) >> 64 < k - len(found):
                found.append(at)
        return found
    drawn: list[int] = []
    for count in range(k):
        last = degree - k + count
        pick = (splitmix64((key + count) & _MASK) * (last + 1)) >> 64
        drawn.append(last if pick in drawn else pick)
    return drawn


def draw_weighted(key: int, weight: list[float], k: int) -> list[int]:
    """The k smallest of -log(u) / weight."""
    marks = [
        (-math.log(_unit(splitmix64((key + at) & _MASK))) / value, at) for at, value in enumerate(weight) if value > 0
    ]
    return sorted(at for _, at in sorted(marks)[:k])


def sample(
    edges: "InEdges", rows: Tensor, bounds: Tensor, keys: Tensor, fanout: int, method: "Method", positions: bool
) -> "Sampled":
    from weft.kernels.sampling import Sampled

    found: list[int] = []
    indptr = [0]
    starts, limits = edges.indptr.tolist(), bounds.tolist()
    for batch, key in enumerate(keys.tolist()):
        for row in rows[limits[batch] : limits[batch + 1]].tolist():
            begin, degree = starts[row], starts[row + 1] - starts[row]
            if fanout < 0 or degree <= fanout:
                taken = list(range(degree))
            elif method == "labor":
                ids = edges.col_ids[edges.indices[begin : begin + degree].long()].tolist()
                draws = (_unit(splitmix64((key ^ source) & _MASK)) for source in ids)
                taken = [at for at, value in enumerate(draws) if value <= fanout / degree]
            else:
                row_key = splitmix64((key ^ int(edges.row_ids[row])) & _MASK)
                if method == "weighted":
                    assert edges.weight is not None
                    taken = draw_weighted(row_key, edges.weight[begin : begin + degree].tolist(), fanout)
                else:
                    taken = draw(row_key, degree, fanout)
            found += [begin + at for at in taken]
            indptr.append(len(found))
    where = torch.tensor(found, dtype=torch.int64)
    degrees = edges.indptr.diff()[rows.long()].int()
    return Sampled(degrees, torch.tensor(indptr), edges.indices[where], where if positions else None)


def merge_sides(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], first_columns: int, ids: Tensor, order: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = torch.arange(first[0].numel() - 1)
    row = torch.cat([rows.repeat_interleave(side[0].diff()) for side in (first, second)])
    columns = torch.cat([first[1], second[1] + first_columns])
    by_id = torch.argsort(ids[columns.long()], stable=True)
    stood = by_id[torch.argsort(row[by_id], stable=True)]
    return first[0] + second[0], columns[stood], stood if order else None


def number_new(table: Tensor, nodes: Tensor, known: int, ends: Tensor) -> tuple[int, Tensor]:
    for end in ends.tolist():
        if table[end] < 0:
            table[end], nodes[known] = known, end
            known += 1
    return known, table[ends.long()]


def find_slots(
    table: Tensor, nodes: Tensor, own: range, slots: int, stamp: int, fetched: Tensor
) -> tuple[Tensor, int, int]:
    where, new, stamped = [], 0, 0
    for node in nodes.tolist():
        if node in own:
            where.append(node - own.start)
            stamped += int(table[node] != stamp)
            table[node] = stamp
            continue
        if table[node] < 0:
            table[node], fetched[new] = slots + new, node
            new += 1
        where.append(len(own) + int(table[node]))
    return torch.tensor(where, dtype=torch.int32), new, stamped


def gather_places(own: Tensor, cached: Tensor, fetched: Tensor, where: Tensor) -> Tensor:
    return torch.cat([own, cached, fetched])[where.long()]


def with_loops(
    indptr: Tensor, indices: Tensor, weight: Tensor | None, loop_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = torch.arange(indptr.numel() - 1)
    destination = rows.repeat_interleave(indptr[1:] - indptr[:-1])
    keep = indices != destination
    order = torch.argsort(torch.cat([rows, destination[keep]]), stable=True)
    columns = torch.cat([rows.int(), indices[keep]])[order]
    counts = torch.bincount(destination[keep], minlength=len(rows)) + 1
    out_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)])
    if weight is None and loop_weight is None:
        return out_indptr, columns, None
    loops = torch.ones(len(rows), dtype=torch.float64) if loop_weight is None else loop_weight
    others = torch.ones(indices.numel(), dtype=torch.float64) if weight is None else weight
    return out_indptr, columns, torch.cat([loops, others[keep]])[order]


def split_columns(indptr: Tensor, indices: Tensor, border: int, stood: bool) -> "tuple[SideEdges, SideEdges]":
    from weft.kernels.sampling import SideEdges

    sides = []
    for keep, start in ((indices < border, 0), (indices >= border, border)):
        before = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(keep, 0)])
        where = keep.nonzero().squeeze(1) if stood else None
        sides.append(SideEdges(before[indptr], indices[keep] - start, where))
    first, second = sides
    return first, second
