"""A minibatch as sampled: vertices hop by hop, and the edges between one hop and the next."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.comm import Route
from weft.graph.graph import CSR
from weft.kernels.sampling import Method


@dataclass(frozen=True)
class Away:
    """Vertices of other workers whose rows are exchanged in a step."""

    ids: Tensor  # int64 [M], global
    scale: Tensor | None  # float64 [M], of GCN's coefficients
    route: Route  # from the rows that go into the layer to these


@dataclass(frozen=True)
class Hop:
    """Sampled in-edges of a minibatch's first vertices; columns are its vertices, of which rows are the first.

    Where workers share a minibatch, these are own vertices, and the last columns are those that are away.
    """

    csr: CSR
    degrees: Tensor  # int32 [R], of each row over the whole graph
    weight_sums: Tensor | None  # float64 [R], likewise, where edges have weights
    loop_weight: Tensor | None  # [R], of the loops that are kept apart and have one
    loops_inside: bool  # edges from a vertex to itself are among those that were drawn from
    fanout: int  # negative: all
    method: Method
    away: Away | None = None
    positions: Tensor | None = None  # int64 [S], where each edge stands among all, where told

    @property
    def num_in(self) -> int:
        """Rows that go into the layer: those of vertices that are here."""
        return self.csr.num_cols - (0 if self.away is None else self.away.ids.numel())


@dataclass(frozen=True)
class Entrance:
    """Where vertices of one worker's seeds alone take over from those that all share: an edge for each, to its row."""

    hop: Hop
    ids: Tensor  # int64, global
    scale: Tensor | None


@dataclass
class Batch:
    """The first sizes[h] vertices are those within h hops of the seeds.

    Where workers share it, of its own vertices those within h hops of anybody's seeds. Where they share only the hops
    from `first_shared` on, those of the hops before are its own seeds' alone.
    """

    step: int
    seeds: Tensor  # int32, where they stand
    nodes: Tensor  # int32, where the vertices stand
    sizes: list[int]
    ids: Tensor | None = None  # int64, global ids of all vertices but those that only the last hop has, where told
    hops: list[Hop] = field(default_factory=list)
    first_shared: int = 0
    entrance: "Entrance | None" = None
    scale: Tensor | None = None  # float64, of GCN's coefficients, where told

    @property
    def num_edges(self) -> int:
        return sum(hop.csr.num_edges for hop in self.hops)


def picking_hop(columns: Tensor, away: Away, num_in: int) -> Hop:
    """Edges that hand rows over as they are: one for each of `columns`, int32."""
    csr = CSR(torch.arange(columns.numel() + 1), columns, num_in + away.ids.numel())
    return Hop(csr, torch.ones_like(columns), None, None, False, -1, "neighbour", away)
