"""Sampling in plain Python and torch: every backend draws these edges."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weft.kernels.arguments import FirstEdges, InEdges, Method, Sampled, SideEdges
from weft.kernels.hash import MASK64, splitmix64_int

FLOYD_MOST = 64


def _unit(random: int) -> float:
    return ((random >> 11) + 1) * 2.0**-53


def draw(key: int, degree: int, k: int) -> list[int]:
    """k of `degree` numbers."""
    if k > FLOYD_MOST:
        found: list[int] = []
        for at in range(degree):
            if (splitmix64_int((key + at) & MASK64) * (degree - at)) >> 64 < k - len(found):
                found.append(at)
        return found
    drawn: list[int] = []
    for count in range(k):
        last = degree - k + count
        pick = (splitmix64_int((key + count) & MASK64) * (last + 1)) >> 64
        drawn.append(last if pick in drawn else pick)
    return drawn


def sampling_interval(weight: list[float], k: int) -> float:
    """An edge of weight w is to be drawn with probability min(1, w / interval), k in all; 0: all with a weight are."""
    positive = [value for value in weight if value > 0]
    if len(positive) <= k:
        return 0.0
    rest, certain = 0.0, 0
    for value in positive:  # from the first to the last: sum() may round otherwise
        rest += value
    interval = rest / k if k else math.inf
    while max(positive) >= interval:
        above, rest = sum(value >= interval for value in positive), 0.0
        for value in positive:
            rest += value if value < interval else 0.0
        if above == certain or above >= k:
            break
        certain = above
        interval = rest / (k - certain)
    return interval


def draw_weighted(key: int, weight: list[float], k: int, interval: float) -> list[int]:
    """k edges, each with its probability (Deville and Tille's pivotal method), ascending."""
    drawn: list[int] = []
    playing, mass = -1, 0.0
    for at, value in enumerate(weight):
        if len(drawn) == k:
            break
        if not value > 0:
            continue
        if value >= interval:
            drawn.append(at)
            continue
        if playing < 0:
            playing, mass = at, value
            continue
        random = _unit(splitmix64_int((key + at) & MASK64))
        if mass + value < interval:
            mass += value
            playing = at if random * mass <= value else playing
            continue
        before, after = interval - value, interval - mass
        first = random * (before + after) <= before
        drawn.append(playing if first else at)
        playing = at if first else playing
        mass = mass + value - interval
    if len(drawn) < k and playing >= 0:
        drawn.append(playing)
    return sorted(drawn)


def sample(
    edges: InEdges,
    rows: Tensor,
    bounds: Tensor,
    keys: Tensor,
    fanout: int,
    method: Method = "neighbour",
    positions: bool = False,
    first: FirstEdges | None = None,
) -> Sampled:
    found: list[int] = []
    indptr, intervals = [0], [0.0] * rows.numel()
    starts, limits = edges.indptr.tolist(), bounds.tolist()
    degrees = edges.indptr.diff()[rows.long()].int() if first is None else first.degrees
    for batch, key in enumerate(keys.tolist()):
        for at in range(limits[batch], limits[batch + 1]):
            row, degree = int(rows[at]), int(degrees[at])
            begin = starts[row]
            if fanout < 0 or degree <= fanout:
                taken = list(range(degree))
            elif method == "last":
                taken = list(range(degree - fanout, degree))
            elif method == "labor":
                ids = edges.col_ids[edges.indices[begin : begin + degree].long()].tolist()
                draws = (_unit(splitmix64_int((key ^ source) & MASK64)) for source in ids)
                taken = [place for place, value in enumerate(draws) if value <= fanout / degree]
            else:
                row_key = splitmix64_int((key ^ int(edges.row_ids[row])) & MASK64)
                if first is not None:
                    row_key = splitmix64_int((row_key ^ int(first.salts[at])) & MASK64)
                if method == "weighted":
                    assert edges.weight is not None
                    weight = edges.weight[begin : begin + degree].tolist()
                    interval = intervals[len(indptr) - 1] = sampling_interval(weight, fanout)
                    taken = draw_weighted(row_key, weight, fanout, interval)
                else:
                    taken = draw(row_key, degree, fanout)
            found += [begin + place for place in taken]
            indptr.append(len(found))
    where = torch.tensor(found, dtype=torch.int64)
    kept = torch.tensor(intervals, dtype=torch.float64) if method == "weighted" else None
    return Sampled(degrees, torch.tensor(indptr), edges.indices[where], where if positions else None, kept)


def merge_sides(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    first_columns: int,
    ids: Tensor,
    order: bool = False,
    after_piece: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = torch.arange(first[0].numel() - 1)
    row = torch.cat([rows.repeat_interleave(side[0].diff()) for side in (first, second)])
    columns = torch.cat([first[1], second[1] + first_columns])
    by_id = torch.argsort(ids[columns.long()], stable=True)
    stood = by_id[torch.argsort(row[by_id], stable=True)]
    if after_piece is not None:
        after_piece()
    return first[0] + second[0], columns[stood], stood if order else None


def number_new(table: Tensor, nodes: Tensor, known: int, ends: Tensor) -> tuple[int, Tensor]:
    for end in ends.tolist():
        if table[end] < 0:
            table[end], nodes[known] = known, end
            known += 1
    return known, table[ends.long()]


def number_known(table: Tensor, nodes: Tensor) -> None:
    table[nodes.long()] = torch.arange(nodes.numel(), dtype=torch.int32)


def forget(table: Tensor, nodes: Tensor) -> None:
    table[nodes.long()] = -1


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


def split_columns(indptr: Tensor, indices: Tensor, border: int, stood: bool) -> tuple[SideEdges, SideEdges]:
    sides = []
    for keep, start in ((indices < border, 0), (indices >= border, border)):
        before = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(keep, 0)])
        where = keep.nonzero().squeeze(1) if stood else None
        sides.append(SideEdges(before[indptr], indices[keep] - start, where))
    first, second = sides
    return first, second
