"""A minibatch as sampled: vertices hop by hop, and the edges between one hop and the next."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.comm import Route
from weft.graph.csr import CSR
from weft.sample.moments import Moments


@dataclass(frozen=True)
class RemoteSources:
    """Sources of sampled edges that other workers own, and whose rows are exchanged in the step."""

    ids: Tensor  # int64 [M], global
    scale: Tensor | None  # float64 [M], of GCN's coefficients
    route: Route  # from the rows that go into the layer to these


@dataclass(frozen=True)
class Hop:
    """Sampled in-edges of a minibatch's first vertices. Rows are these vertices; columns are the vertices that the
    minibatch has after this hop, the same ones first.

    Where workers share a minibatch, these are own vertices, and the last columns are the remote sources.
    """

    csr: CSR
    degrees: Tensor  # int32 [R], of each row over the whole graph
    weight_sums: Tensor | None  # float64 [R], likewise, where edges have weights
    loop_weight: Tensor | None  # [R], of self-loops that are kept apart and have a weight
    loops_inside: bool  # self-loops are among the edges that were drawn from
    fanout: int  # negative: all
    remote: RemoteSources | None = None
    edge_ids: Tensor | None = None  # int64 [S], each edge's index among all in-edges, where asked for
    intervals: Tensor | None = None  # float64 [R], drawn by weight: of an edge of weight w, w / interval is its chance
    left_out: Tensor | None = (
        None  # int32 [R], in-edges of each row that the minibatch does not see, though it has them
    )

    @property
    def num_remote(self) -> int:
        """Sources whose rows come from other workers."""
        return 0 if self.remote is None else self.remote.ids.numel()

    @property
    def num_in(self) -> int:
        """Rows that go into the layer: those of vertices that are here."""
        return self.csr.num_cols - self.num_remote


@dataclass(frozen=True)
class Boundary:
    """Between the hops that workers share and those that each draws for its own seeds: the rows of this worker's own
    part, each copied by one edge from its owner's."""

    hop: Hop
    ids: Tensor  # int64, global
    scale: Tensor | None
    counted: Tensor | None  # as a batch's


@dataclass
class Batch:
    """The first sizes[h] vertices are those within h hops of the seeds.

    Where workers share it, they are its own vertices within h hops of any worker's seeds. Where workers share only the
    hops from `first_shared` on, those of the hops before belong to this worker's own seeds.
    """

    step: int
    seeds: Tensor  # int32 positions in the partition book
    nodes: Tensor  # int32 positions, of all vertices
    sizes: list[int]
    ids: Tensor | None = None  # int64, global ids of all vertices but those of the last hop, where known
    hops: list[Hop] = field(default_factory=list)
    first_shared: int = 0
    boundary: Boundary | None = None
    scale: Tensor | None = None  # float64, of GCN's coefficients, where known
    counted: Tensor | None = None  # bool, which of its first vertices no other worker counts, where asked for
    times: Tensor | None = None  # float64, of all vertices, where a minibatch has moments
    seed_times: Tensor | None = None  # float64, of the seeds, likewise

    @property
    def moments(self) -> Moments:
        """Vertices and their times."""
        assert self.times is not None, "this minibatch has no times"
        return Moments(self.nodes, self.times)

    def places(self, nodes: Tensor, times: Tensor | None) -> Tensor:
        """Where vertices, or moments, are among the seeds, which ascend; int64."""
        if self.seed_times is None or times is None:
            return torch.searchsorted(self.seeds, nodes)
        return Moments(self.seeds, self.seed_times).find(Moments(nodes, times))

    @property
    def num_edges(self) -> int:
        return sum(hop.csr.num_edges for hop in self.hops)


def copying_hop(columns: Tensor, remote: RemoteSources, num_in: int) -> Hop:
    """Edges along which rows are copied as they are: one for each of `columns`, int32."""
    csr = CSR(torch.arange(columns.numel() + 1), columns, num_in + remote.ids.numel())
    return Hop(csr, torch.ones_like(columns), None, None, False, -1, remote)
