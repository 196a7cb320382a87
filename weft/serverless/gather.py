"""Gathering over an adjacency by intervals: the edges of each interval, and the intervals whose rows it reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weft import kernels
from weft.graph.csr import row_numbers
from weft.serverless.adjacency import Adjacency
from weft.serverless.intervals import Intervals
from weft.serverless.pipeline import IntervalId
from weft.serverless.schedule import Schedule


@dataclass(frozen=True)
class OutgoingRows:
    """Rows of an interval that another server reads, and their places in its buffer."""

    server: int
    rows: Tensor  # own rows, int64
    places: slice


class Gather:
    """Creating it is a collective operation."""

    def __init__(self, intervals: Intervals, adjacency: Adjacency) -> None:
        self.intervals, self.adjacency, self._comm = intervals, adjacency, intervals.comm
        # Where an interval's rows begin among those that each server reads.
        self._cuts = [torch.searchsorted(rows, intervals.bounds) for rows in adjacency.sends]
        starts = torch.tensor([span.start for span in adjacency.receives])
        all_starts = self._comm.all_gather(starts, "control", "places in buffers")
        self._remote_starts = all_starts[:, self._comm.worker].tolist()  # by server: of own rows in its buffer
        self._remote_rows = self._exchange_rows()
        self._source_intervals = self._find_source_intervals()

    def outgoing(self, interval: int) -> list[OutgoingRows]:
        """The rows to send when the interval has computed them."""
        found = []
        for server, (rows, cuts) in enumerate(zip(self.adjacency.sends, self._cuts, strict=True)):
            low, high = int(cuts[interval]), int(cuts[interval + 1])
            if high > low and server != self._comm.worker:
                start = self._remote_starts[server]
                found.append(OutgoingRows(server, rows[low:high], slice(start + low, start + high)))
        return found

    def sources(self, interval: int) -> set[IntervalId]:
        """The intervals whose rows this interval gathers."""
        columns = torch.unique(self.columns(interval))
        spans = [(self._comm.worker, slice(0, self.intervals.num_rows)), *enumerate(self.adjacency.receives)]
        return {
            IntervalId(server, int(number))
            for server, span in spans
            for number in torch.unique(self._source_intervals[columns[(columns >= span.start) & (columns < span.stop)]])
        }

    def stale_edges(self, interval: int, schedule: Schedule) -> Tensor | None:
        """Which of an interval's edges read stale rows, bool [E]; None if none does."""
        numbers = range(len(self.intervals))
        is_stale = torch.tensor([schedule.is_stale(interval, source) for source in numbers])[self._source_intervals]
        edges = is_stale[self.columns(interval)]
        return edges if edges.any() else None

    def stale_weight(self, interval: int, stale: Tensor) -> Tensor:
        """The sum of the coefficients of each row's stale edges, [rows of the interval, 1]."""
        weight = self.adjacency.csr.weight
        edges = stale.to(torch.float32) if weight is None else weight[self.edges(interval)] * stale
        rows = self.intervals.rows(interval)
        return edges.new_zeros(rows.stop - rows.start).index_add_(0, self.row_numbers(interval), edges)[:, None]

    def edges(self, interval: int) -> slice:
        rows, indptr = self.intervals.rows(interval), self.adjacency.csr.indptr
        return slice(int(indptr[rows.start]), int(indptr[rows.stop]))

    def places(self, interval: int) -> Tensor:
        """The place in the buffer of each edge's source, int32."""
        return self.adjacency.csr.indices[self.edges(interval)]

    def columns(self, interval: int) -> Tensor:
        """The place in the buffer of each edge's source, int64."""
        return self.places(interval).long()

    def row_numbers(self, interval: int) -> Tensor:
        """The number in the interval of each edge's row, int64."""
        return row_numbers(self._indptr(interval))

    def sum(self, interval: int, rows: Tensor, columns: Tensor) -> Tensor:
        """The weighted sum over each row's edges, [rows of the interval, D]; `columns`: of their sources in `rows`."""
        weight = self.adjacency.csr.weight
        edge_weight = None if weight is None else weight[self.edges(interval)]
        return kernels.spmm(self._indptr(interval).contiguous(), columns.contiguous(), rows, edge_weight)

    def _indptr(self, interval: int) -> Tensor:
        rows = self.intervals.rows(interval)
        indptr = self.adjacency.csr.indptr[rows.start : rows.stop + 1]
        return indptr - indptr[0]

    def _find_source_intervals(self) -> Tensor:
        """For each place in the buffer: the number of the row's interval at its server."""
        bounds = self.intervals.all_bounds
        own_rows = torch.arange(self.intervals.num_rows)
        found = torch.empty(self.adjacency.num_columns, dtype=torch.int64)
        found[: len(own_rows)] = torch.searchsorted(bounds[self._comm.worker], own_rows, right=True) - 1
        for server, span in enumerate(self.adjacency.receives):
            found[span] = torch.searchsorted(bounds[server], self._remote_rows[server], right=True) - 1
        return found

    def _exchange_rows(self) -> list[Tensor]:
        """By server: the row numbers there of the rows that it sends."""
        comm = self._comm
        outgoing = [
            None if server == comm.worker else rows.contiguous() for server, rows in enumerate(self.adjacency.sends)
        ]
        incoming = [
            None if server == comm.worker else torch.empty(span.stop - span.start, dtype=torch.int64)
            for server, span in enumerate(self.adjacency.receives)
        ]
        comm.post(outgoing, incoming, "ids", "rows of others").wait()
        return [torch.empty(0, dtype=torch.int64) if rows is None else rows for rows in incoming]
