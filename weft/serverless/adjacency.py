"""The edges that a server gathers over, forward and backward, and which rows it sends to which server.

Forward, rows of in-neighbours are gathered; backward, gradients of out-neighbours are. In either direction a row is
sent once to each server that reads it. For the backward direction, each server learns once which out-edges of its
vertices end at other servers. A buffer holds a server's own rows first, then those of other servers, by server and in
the order of their rows there; so the rows of an interval are one piece in the buffer of each reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.blocks import Block
from weft.aggregate.rounds import MATERIALISED
from weft.aggregate.topology import Weight
from weft.aggregate.whole import WholeShard
from weft.comm import Communicator
from weft.graph.csr import CSR, row_numbers
from weft.partitioning import Shard


@dataclass(frozen=True)
class Adjacency:
    """Edges into own rows, in one direction, and the rows that are exchanged for them."""

    csr: CSR  # N rows; columns are places in the buffer; weights are coefficients
    sends: tuple[Tensor, ...]  # by server: own rows that it reads, int64, ascending
    receives: tuple[slice, ...]  # by server: the places of its rows in the buffer

    @property
    def num_columns(self) -> int:
        return self.csr.num_cols


class GraphEdges:
    """Makes the adjacencies of aggregations over one server's part of the graph."""

    def __init__(self, shard: Shard, comm: Communicator) -> None:
        self._shard, self._comm = shard, comm
        self._topology = WholeShard(shard, comm, MATERIALISED)

    def forward(self, reduce: str, weight: Weight, dtype: torch.dtype) -> Adjacency:
        """The edges of an aggregation. `reduce` "attend": with self-loops and without coefficients."""
        edges = self._topology.edges(reduce, weight, torch.float64)
        blocks = [*edges.own, *edges.rounds]
        shard = self._shard
        rows = torch.cat([row_numbers(block.csr.indptr) for block in blocks])
        starts = [0, shard.num_nodes]
        columns = torch.cat([block.csr.indices.long() + start for block, start in zip(blocks, starts, strict=False)])
        values = torch.cat([_coefficients(block) for block in blocks]).to(dtype)
        csr = _csr(rows, columns, values, shard.num_nodes, shard.num_nodes + shard.num_halo)
        return Adjacency(csr, self._halo_rows_of_others(), _spans(shard.halo_counts, shard.num_nodes))

    def backward(self, forward: Adjacency) -> Adjacency:
        """The reversed edges. Each server sends the edges whose sources are at another server to that server."""
        shard, comm = self._shard, self._comm
        rows, columns = row_numbers(forward.csr.indptr), forward.csr.indices.long()
        values = forward.csr.weight
        assert values is not None
        own = columns < shard.num_nodes
        outgoing: list[Tensor | None] = []
        sends: list[Tensor] = []  # by server: own rows that have in-edges from there
        for server, span in enumerate(forward.receives):
            from_server = (columns >= span.start) & (columns < span.stop)
            sources = shard.halo_rows[columns[from_server] - shard.num_nodes]
            edges = torch.stack([sources.double(), rows[from_server].double(), values[from_server].double()])
            outgoing.append(None if server == comm.worker else edges.contiguous())
            sends.append(torch.unique(rows[from_server]))
        incoming = self._exchange_edges(outgoing)
        row_parts, column_parts, weight_parts, counts = [columns[own]], [rows[own]], [values[own]], []
        start = shard.num_nodes
        for edges_in in incoming:
            if edges_in is None:
                counts.append(0)
                continue
            targets = torch.unique(edges_in[1].long())
            row_parts.append(edges_in[0].long())
            column_parts.append(start + torch.searchsorted(targets, edges_in[1].long()))
            weight_parts.append(edges_in[2].to(values.dtype))
            counts.append(targets.numel())
            start += targets.numel()
        csr = _csr(torch.cat(row_parts), torch.cat(column_parts), torch.cat(weight_parts), shard.num_nodes, start)
        to_others = tuple(rows if server != comm.worker else rows[:0] for server, rows in enumerate(sends))
        return Adjacency(csr, to_others, _spans(counts, shard.num_nodes))

    def _exchange_edges(self, outgoing: list[Tensor | None]) -> list[Tensor | None]:
        """Exchanges edges ([3, E]: source, target, coefficient) between servers."""
        comm, what = self._comm, "edges that end elsewhere"
        sizes = torch.tensor([0 if edges is None else edges.shape[1] for edges in outgoing])
        incoming_sizes = comm.all_gather(sizes, "control", what)[:, comm.worker].tolist()
        incoming = [
            None if server == comm.worker else torch.empty(3, count, dtype=torch.float64)
            for server, count in enumerate(incoming_sizes)
        ]
        comm.post(outgoing, incoming, "topology", what).wait()
        return incoming

    def _halo_rows_of_others(self) -> tuple[Tensor, ...]:
        """By server: own rows that are in its halo."""
        route = self._topology.rounds[0].route if self._topology.rounds else None
        if route is None:
            return (torch.empty(0, dtype=torch.int64),)
        return tuple(
            torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu() for rows in route.send_rows
        )


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
