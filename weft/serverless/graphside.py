"""What a graph server knows of the graph: its vertices in intervals, their edges both ways, and who reads what.

Forward, rows of in-neighbours are gathered; backward, gradients of out-neighbours are. Either way a row travels once to
each server that reads it: for the way back every server learns which of its vertices' out-edges end elsewhere, once.
Own rows stand first in a buffer, then those of other servers, by server and in the order of their rows there; so an
interval's rows go to each reader as one piece, and stand there as one piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.blocks import Block
from weft.aggregate.topology import MATERIALISED, Topology, Weight
from weft.comm import Communicator
from weft.graph.graph import CSR
from weft.partition import Shard
from weft.partition.shard import row_numbers
from weft.serverless.pipeline import Spot


@dataclass(frozen=True)
class Side:
    """Edges into own rows from own and foreign ones, and which rows go where. Forward, or with edges reversed."""

    csr: CSR  # N rows; columns: N own rows, then foreign ones; weight: coefficients
    sends: tuple[Tensor, ...]  # by server: own rows that it reads, int64, ascending
    receives: tuple[slice, ...]  # by server: where its rows stand in a buffer

    @property
    def num_columns(self) -> int:
        return self.csr.num_cols


@dataclass(frozen=True)
class Piece:
    """An interval's rows on their way to another server, and where they stand there."""

    server: int
    rows: Tensor  # own rows, int64
    at: slice  # in the reader's buffer


class Intervals:
    """One server's vertices, cut into runs that are about equally much work."""

    def __init__(self, shard: Shard, comm: Communicator, count: int) -> None:
        self.comm, self.shard = comm, shard
        degrees = shard.local.degrees() + shard.remote.degrees() + 1
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        wanted = torch.arange(1, count, dtype=torch.int64) * int(ends[-1]) // count
        inner = torch.searchsorted(ends, wanted)
        self.bounds = torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.tensor([shard.num_nodes])])
        self.all_bounds = comm.all_gather(self.bounds, "control", "bounds of intervals")  # [W, I + 1]
        self.topology = Topology(shard, comm, MATERIALISED)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows(self, interval: int) -> slice:
        return slice(int(self.bounds[interval]), int(self.bounds[interval + 1]))

    def forward(self, reduce: str, weight: Weight, dtype: torch.dtype) -> Side:
        """Edges of an aggregation (`reduce` "attend": with loops, and without coefficients)."""
        edges = self.topology.edges(reduce, weight, torch.float64)
        blocks = [*edges.own, *edges.rounds]
        shard = self.shard
        rows = torch.cat([row_numbers(block.csr.indptr) for block in blocks])
        starts = [0, shard.num_nodes]
        columns = torch.cat([block.csr.indices.long() + start for block, start in zip(blocks, starts, strict=False)])
        values = torch.cat([_coefficients(block) for block in blocks]).to(dtype)
        csr = _csr(rows, columns, values, shard.num_nodes, shard.num_nodes + shard.num_halo)
        ends = _spans(shard.halo_counts, shard.num_nodes)
        sends = self._told()
        return Side(csr, sends, ends)

    def backward(self, forward: Side) -> Side:
        """The same edges the other way round: those that end elsewhere are told by who has them."""
        shard, comm = self.shard, self.comm
        rows, columns = row_numbers(forward.csr.indptr), forward.csr.indices.long()
        values = forward.csr.weight
        assert values is not None
        own = columns < shard.num_nodes
        leaving: list[Tensor | None] = []
        read: list[Tensor] = []  # by server: own rows that have in-edges from there
        for server, span in enumerate(forward.receives):
            mine = (columns >= span.start) & (columns < span.stop)
            there = shard.halo_rows[columns[mine] - shard.num_nodes]
            edges = torch.stack([there.double(), rows[mine].double(), values[mine].double()])
            leaving.append(None if server == comm.worker else edges.contiguous())
            read.append(torch.unique(rows[mine]))
        sizes = torch.tensor([0 if edges is None else edges.shape[1] for edges in leaving])
        coming = comm.all_gather(sizes, "control", "edges that end elsewhere")[:, comm.worker].tolist()
        arriving = [
            None if server == comm.worker else torch.empty(3, count, dtype=torch.float64)
            for server, count in enumerate(coming)
        ]
        comm.post(leaving, arriving, "topology", "edges that end elsewhere").wait()
        sources, ends, weights, counts = [columns[own]], [rows[own]], [values[own]], []
        start = shard.num_nodes
        for came in arriving:
            found = torch.empty(0, dtype=torch.int64) if came is None else torch.unique(came[1].long())
            if came is not None:
                sources.append(came[0].long())
                ends.append(start + torch.searchsorted(found, came[1].long()))
                weights.append(came[2].to(values.dtype))
            counts.append(found.numel())
            start += found.numel()
        csr = _csr(torch.cat(sources), torch.cat(ends), torch.cat(weights), shard.num_nodes, start)
        sends = tuple(rows if server != comm.worker else rows[:0] for server, rows in enumerate(read))
        return Side(csr, sends, _spans(counts, shard.num_nodes))

    def _told(self) -> tuple[Tensor, ...]:
        route = self.topology.rounds[0].route if self.topology.rounds else None
        if route is None:
            return (torch.empty(0, dtype=torch.int64),)
        return tuple(
            torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu() for rows in route.send_rows
        )


class Gather:
    """One side's gathering, interval by interval."""

    def __init__(self, intervals: Intervals, side: Side) -> None:
        self.intervals, self.side = intervals, side
        comm = intervals.comm
        # Where an interval's rows begin in each reader's list of them.
        self._cuts = [torch.searchsorted(rows, intervals.bounds) for rows in side.sends]
        starts = torch.tensor([span.start for span in side.receives])
        self._starts_there = comm.all_gather(starts, "control", "places in buffers")[:, comm.worker].tolist()
        self._rows_there = self._ask_rows()

    def pieces(self, interval: int) -> list[Piece]:
        """What leaves when an interval's rows are new."""
        found = []
        for server, (rows, cuts) in enumerate(zip(self.side.sends, self._cuts, strict=True)):
            low, high = int(cuts[interval]), int(cuts[interval + 1])
            if high > low and server != self.intervals.comm.worker:
                start = self._starts_there[server]
                found.append(Piece(server, rows[low:high], slice(start + low, start + high)))
        return found

    def reads(self, interval: int) -> set[Spot]:
        """Intervals whose rows this one gathers."""
        columns = torch.unique(self.columns(interval))
        n, me, bounds = self.intervals.shard.num_nodes, self.intervals.comm.worker, self.intervals.all_bounds
        own = torch.searchsorted(bounds[me], columns[columns < n], right=True) - 1
        found = {Spot(me, int(i)) for i in torch.unique(own)}
        for server, span in enumerate(self.side.receives):
            slots = columns[(columns >= span.start) & (columns < span.stop)] - span.start
            if slots.numel():
                rows = self._rows_there[server][slots]
                there = torch.searchsorted(bounds[server], rows, right=True) - 1
                found |= {Spot(server, int(i)) for i in torch.unique(there)}
        return found

    def _ask_rows(self) -> list[Tensor]:
        """By server: the rows, there, of what stands in the buffer from it."""
        comm = self.intervals.comm
        leaving = [None if server == comm.worker else rows.contiguous() for server, rows in enumerate(self.side.sends)]
        arriving = [
            None if server == comm.worker else torch.empty(span.stop - span.start, dtype=torch.int64)
            for server, span in enumerate(self.side.receives)
        ]
        comm.post(leaving, arriving, "ids", "rows of others").wait()
        return [torch.empty(0, dtype=torch.int64) if rows is None else rows for rows in arriving]

    def edges(self, interval: int) -> slice:
        rows, indptr = self.intervals.rows(interval), self.side.csr.indptr
        return slice(int(indptr[rows.start]), int(indptr[rows.stop]))

    def columns(self, interval: int) -> Tensor:
        """Where each edge's other end stands in the buffer, int64."""
        return self.side.csr.indices[self.edges(interval)].long()

    def row_numbers(self, interval: int) -> Tensor:
        """Each edge's row in the interval, int64."""
        rows = self.intervals.rows(interval)
        indptr = self.side.csr.indptr[rows.start : rows.stop + 1]
        return row_numbers(indptr - indptr[0])

    def sum(self, interval: int, buffer: Tensor) -> Tensor:
        """The weighted sum over each row's edges, [rows of the interval, D]."""
        rows, edges, csr = self.intervals.rows(interval), self.edges(interval), self.side.csr
        indptr = csr.indptr[rows.start : rows.stop + 1]
        weight = None if csr.weight is None else csr.weight[edges]
        return kernels.spmm((indptr - indptr[0]).contiguous(), csr.indices[edges].contiguous(), buffer, weight)


def _coefficients(block: Block) -> Tensor:
    csr = block.csr
    values = torch.ones(csr.num_edges, dtype=torch.float64) if csr.weight is None else csr.weight.double()
    if block.row_scale is not None:
        values = values * block.row_scale.double()[row_numbers(csr.indptr)]
    if block.col_scale is not None:
        values = values * block.col_scale.double()[csr.indices.long()]
    return values


def _csr(rows: Tensor, columns: Tensor, values: Tensor, num_rows: int, num_cols: int) -> CSR:
    indptr, indices, order = kernels.build_csr(columns, rows, num_cols, num_rows)
    return CSR(indptr, indices, num_cols, weight=values[order])


def _spans(counts: Sequence[int], start: int) -> tuple[slice, ...]:
    ends = [start]
    for count in counts:
        ends.append(ends[-1] + int(count))
    return tuple(slice(*pair) for pair in pairwise(ends))
