"""How rows of other workers arrive: the halo divided into rounds, as a schedule says.

All of the halo in one round is `materialised`; one round for each block of each worker's rows, taken in turn so that
everybody sends to somebody else, is `sequential`; one for each worker, all of them started together, is `overlapped`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weft.comm import Communicator, Route, Rows
from weft.comm.pairwise import partners
from weft.comm.route import num_rows
from weft.partitioning import Shard


@dataclass(frozen=True)
class Schedule:
    """In which order halo rows come, and what is kept of them for the backward pass.

    `rounds`: "one" takes the whole halo at once, "each" block by block. `keep`: "rows" as they arrived, "packed" as
    they travelled (where the codec packs), or "nothing": a backward pass that reads them fetches them again.
    `prefetch`: rounds in flight while one is absorbed. `blocks`: into how many each worker's rows are divided.
    `overlap`: what can be computed without the halo is, products too, while it travels. `target_rounds`: what comes
    from one worker is divided until there are about so many, but not where pieces would have fewer than
    `smallest_piece` rows.
    """

    rounds: Literal["one", "each"] = "one"
    keep: Literal["rows", "packed", "nothing"] = "rows"
    prefetch: int = 1
    blocks: int = 1
    overlap: bool = False
    target_rounds: int = 1
    smallest_piece: int = 1


MATERIALISED = Schedule()
# Everything is sent as soon as it can be, and taken in as it comes: the first rows leave early, the last leave little.
OVERLAPPED = Schedule(rounds="each", prefetch=1 << 30, overlap=True, target_rounds=12, smallest_piece=1024)
SEQUENTIAL = Schedule(rounds="each", keep="nothing")


@dataclass(frozen=True)
class Round:
    """Rows that arrive together."""

    route: Route  # from everybody's rows to these
    slots: slice  # where they stand in the halo
    ids: Tensor  # int64 [M] their global ids

    @property
    def num_rows(self) -> int:
        return self.ids.numel()


def make_rounds(shard: Shard, comm: Communicator, route: Route, schedule: Schedule) -> tuple[Round, ...]:
    """All of the halo at once, or from each worker in turn, block by block; own rows never travel."""
    if comm.num_workers == 1:
        return ()
    if schedule.rounds == "one":
        return (Round(route, slice(0, shard.num_halo), shard.halo_ids),)
    mine = torch.tensor([route.num_in, max(shard.halo_counts)])
    sizes, counts = comm.all_gather(mine, "control", "rows of every worker").T.tolist()
    starts = [rows.start for rows in route.recv_rows if isinstance(rows, slice)]
    rounds = []
    wanted = schedule.target_rounds // ((comm.num_workers - 1) * schedule.blocks)
    pieces = max(1, min(wanted, max(counts) // schedule.blocks // schedule.smallest_piece))
    for to, source in partners(comm.worker, comm.num_workers):
        first = starts[source]
        asked = shard.halo_rows[first : first + shard.halo_counts[source]].contiguous()
        for ours, theirs in zip(
            even_spans(route.num_in, schedule.blocks), even_spans(sizes[source], schedule.blocks), strict=True
        ):
            sent = _within(route.send_rows[to], ours)
            low, high = _bounds(asked, theirs)
            for leaving, arriving in zip(
                even_spans(num_rows(sent), pieces), even_spans(high - low, pieces), strict=True
            ):
                slots = slice(first + low + arriving.start, first + low + arriving.stop)
                part = route.between(to, _piece(sent, leaving), source, slots.stop - slots.start)
                rounds.append(Round(part, slots, shard.halo_ids[slots]))
    return tuple(rounds)


def even_spans(num_rows: int, count: int) -> list[slice]:
    """Rows divided into `count` runs of nearly equal length."""
    return [slice(num_rows * k // count, num_rows * (k + 1) // count) for k in range(count)]


def _bounds(ascending: Tensor, span: slice) -> tuple[int, int]:
    """Where the numbers of a span stand in an ascending vector."""
    ends = torch.searchsorted(ascending, torch.tensor([span.start, span.stop], device=ascending.device))
    return int(ends[0]), int(ends[1])


def _within(rows: Rows, span: slice) -> Rows:
    """Those of some ascending rows that lie in a span."""
    if isinstance(rows, slice):
        start = max(rows.start, span.start)
        return slice(start, max(start, min(rows.stop, span.stop)))
    low, high = _bounds(rows, span)
    return rows[low:high]


def _piece(rows: Rows, places: slice) -> Rows:
    """Those of some rows that stand at consecutive places."""
    if isinstance(rows, slice):
        return slice(rows.start + places.start, rows.start + places.stop)
    return rows[places]
