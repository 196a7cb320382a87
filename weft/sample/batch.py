"""A minibatch as sampled: vertices hop by hop, and the edges between one hop and the next."""

from dataclasses import dataclass, field

from torch import Tensor

from weft.graph.graph import CSR
from weft.kernels.sampling import Method


@dataclass(frozen=True)
class Hop:
    """Sampled in-edges of a minibatch's first vertices; columns are its vertices, of which rows are the first."""

    csr: CSR
    degrees: Tensor  # int32 [R], of each row over the whole graph
    weight_sums: Tensor | None  # float64 [R], likewise, where edges have weights
    loop_weight: Tensor | None  # [R], of the loops that are kept apart and have one
    loops_inside: bool  # edges from a vertex to itself are among those that were drawn from
    fanout: int  # negative: all
    method: Method
    positions: Tensor | None = None  # int64 [S], where each edge stands among all, where told


@dataclass
class Batch:
    """The first sizes[h] vertices are those within h hops of the seeds."""

    step: int
    seeds: Tensor  # int32, where they stand
    nodes: Tensor  # int32, where the vertices stand
    sizes: list[int]
    ids: Tensor | None = None  # int64, global ids of all vertices but those that only the last hop has, where told
    hops: list[Hop] = field(default_factory=list)

    @property
    def num_edges(self) -> int:
        return sum(hop.csr.num_edges for hop in self.hops)
