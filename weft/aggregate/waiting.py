"""Which rows of an aggregation wait for other workers, and for which round of them.

What need not wait is worked on while rows travel. A topology has these three as properties, each computed once.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch

from weft.aggregate.topology import Topology
from weft.comm import Rows
from weft.comm.route import num_rows


def final_rows(topology: Topology) -> tuple[int, ...]:
    """How many first rows have no remote in-edge, and how many wait for nothing after each round."""
    num_out = topology.num_out
    waiting = [block.csr.degrees().nonzero() for block in topology.plain.rounds]
    first = [int(rows[0]) if rows.numel() else num_out for rows in waiting]
    return tuple(min(first[done:], default=num_out) for done in range(len(first) + 1))


def home_spans(topology: Topology) -> tuple[tuple[slice, ...], ...]:
    """Rows that nobody else reads, and those whose gradient is complete after each round's has come home.

    Where the rows of a round are scattered there would be many spans: then all rows wait for the last round.
    """
    last = torch.zeros(topology.num_in, dtype=torch.int64)
    for number, round in enumerate(topology.rounds, 1):
        for peer, rows in enumerate(round.route.send_rows):
            if peer != topology.comm.worker and num_rows(rows):
                last[rows if isinstance(rows, slice) else rows.cpu()] = number
    changes = (last[1:] != last[:-1]).nonzero().squeeze(1) + 1
    if changes.numel() > (len(topology.rounds) + 1) ** 2:
        return (*[()] * len(topology.rounds), (slice(0, topology.num_in),))
    ends = [0, *changes.tolist(), topology.num_in]
    spans: list[list[slice]] = [[] for _ in range(len(topology.rounds) + 1)]
    for start, stop in pairwise(ends):
        spans[int(last[start]) if topology.num_in else 0].append(slice(start, stop))
    return tuple(tuple(some) for some in spans)


def sent_spans(topology: Topology) -> tuple[slice, ...]:
    """Of each round, the span of the rows that leave with it."""
    me = topology.comm.worker
    return tuple(
        _hull(rows for peer, rows in enumerate(round.route.send_rows) if peer != me) for round in topology.rounds
    )


def _hull(several: Iterable[Rows]) -> slice:
    """The smallest span that holds all of some rows."""
    ends = [
        (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
        for rows in several
        if num_rows(rows)
    ]
    return slice(min(start for start, _ in ends), max(stop for _, stop in ends)) if ends else slice(0, 0)
