"""Minibatches that all workers share: each draws for its own vertices alone, and rows are exchanged in every step.

What a vertex draws is keyed by its global id, so the sampled graph is the one that a single worker would draw; every
vertex of it is computed once, by its owner. The rows of the last hop never change: they are fetched ahead, as for any
other minibatch. Of the hops before, the routes along which rows go are found here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from weft.comm import Communicator, Route, build_route, raw, start_exchange
from weft.graph.csr import CSR
from weft.kernels import gather, memory
from weft.kernels.sampling import forget, number_known, number_new
from weft.partitioning import Shard
from weft.sample.all_to_all import all_to_all_v
from weft.sample.batch import Batch, Boundary, RemoteSources, copying_hop
from weft.sample.book import PartitionBook
from weft.sample.sampled import SampledEdges
from weft.sample.sampler import Drawing, Sampler, ends_of
from weft.sample.source import Source


@dataclass(frozen=True)
class Sharing:
    """Which hops workers share, and what is exchanged in steps."""

    first: int = 0  # the first shared hop; those before it are drawn by each worker for its own seeds alone
    exchanged: int = 0  # hops from the seeds whose rows are exchanged in steps; rows of later hops are fetched ahead
    scales: bool = False  # whether GCN's coefficients are needed


@dataclass(frozen=True)
class Requests:
    """Vertices of other workers that a minibatch needs, in the order of workers."""

    rows: Tensor  # int32, their rows there
    counts: Tensor  # int64 [W]


class SharedSampler(Sampler):
    """Draws the minibatches that all workers train together; every worker takes part in every draw."""

    shares = True

    def __init__(
        self, source: Source, shard: Shard, book: PartitionBook, comm: Communicator, drawing: Drawing, sharing: Sharing
    ) -> None:
        super().__init__(source, shard, book, comm, drawing)
        self._sharing = sharing
        self._halo_rows, self._halo_ends = shard.halo_rows.int(), ends_of(shard.halo_counts)
        self._known = torch.full((shard.num_nodes + shard.num_halo,), -1, dtype=torch.int32)
        self._marked = torch.zeros(shard.num_halo, dtype=torch.bool)
        self._scale: Tensor | None = None  # of own vertices and then of the halo
        if sharing.scales:
            route = build_route(comm, shard.halo_rows, shard.halo_counts, shard.num_nodes)
            own = self.neighbours.symmetric_scale
            halo = start_exchange(comm, route, own.unsqueeze(1), raw, "topology", "vertex degrees").finish()
            self._scale = torch.cat([own, halo.squeeze(1)])

    def _draw_hops(self, batches: Sequence[Batch], epoch: int, hops: int | None) -> None:
        first, last = self._sharing.first, len(self.drawing.fanouts) if hops is None else hops
        if first:
            super()._draw_hops(batches, epoch, first)
            self._begin_sharing(batches)
        else:
            for batch in batches:
                batch.nodes = batch.nodes - self.book.own.start
        for hop in range(first, last):
            fanout, bounds = self.drawing.fanouts[hop], ends_of([batch.nodes.numel() for batch in batches])
            rows = torch.cat([batch.nodes for batch in batches])
            drawn = self._own(rows, bounds, self._keys(epoch, batches, hop), fanout)
            parts = [drawn.rows(low, high) for low, high in pairwise(bounds.tolist())]
            if hop < self._sharing.exchanged:
                self._share(batches, parts, fanout)
                continue
            for batch, part in zip(batches, parts, strict=True):
                columns = self._number(batch, part.sources)
                csr = CSR(part.indptr, columns, batch.sizes[-1], **part.edge_data)
                batch.hops.append(self._hop(part, csr, fanout))
        for batch in batches:
            batch.ids = gather(self.neighbours.ids, batch.nodes)
            batch.scale = None if self._scale is None else gather(self._scale, batch.nodes)
            batch.nodes = gather(self.neighbours.positions, batch.nodes)
        if self.drawing.counted >= len(self.drawing.fanouts):  # vertices of the last hop may be others'
            self._count(batches, [batch.sizes[-2:] for batch in batches])

    def _number(self, batch: Batch, ends: Tensor) -> Tensor:
        """Adds the vertices `ends` to a minibatch, unless it has them already; returns their numbers in it, int32."""
        known = batch.nodes.numel()
        nodes = memory.empty((known + ends.numel() + 1,), torch.int32)
        nodes[:known] = batch.nodes
        number_known(self._known, batch.nodes)
        count, columns = number_new(self._known, nodes, known, ends)
        batch.nodes = nodes[:count]
        forget(self._known, batch.nodes)
        batch.sizes.append(count)
        return columns

    # -- hops of which rows are exchanged ------------------------------------------------------------------------

    def _share(self, batches: Sequence[Batch], parts: Sequence[SampledEdges], fanout: int) -> None:
        """Adds a hop: owners are told which of their vertices others read, and add them to their part of the batch."""
        first = len(self.book.own)
        halos = [self._in_halo(part.sources - first) for part in parts]
        requests = [Requests(self._halo_rows[slots], self._owned(slots)) for slots in halos]
        for batch, part, slots, mine, theirs in zip(
            batches, parts, halos, requests, self._exchange(requests), strict=True
        ):
            here = part.sources < first
            own = part.sources[here]
            numbered = self._number(batch, torch.cat([own, *theirs]))
            count = batch.sizes[-1]
            place = torch.searchsorted(slots, (part.sources[~here] - first).long())
            columns = torch.empty_like(part.sources)
            columns[here], columns[~here] = numbered[: own.numel()], place.int() + count
            route = route_of(numbered[own.numel() :], theirs, mine.counts, count)
            scale = None if self._scale is None else self._scale[slots + first]
            remote = RemoteSources(self.neighbours.ids[slots + first], scale, route)
            csr = CSR(part.indptr, columns, count + slots.numel(), **part.edge_data)
            batch.hops.append(self._hop(part, csr, fanout, remote))

    def _in_halo(self, slots: Tensor) -> Tensor:
        """The distinct slots of the halo among `slots`, ascending, int64; negative numbers are left out."""
        self._marked[slots[slots >= 0].long()] = True
        found = self._marked.nonzero().squeeze(1)
        self._marked[found] = False
        return found

    def _owned(self, slots: Tensor) -> Tensor:
        """How many of these slots of the halo belong to each worker, int64 [W]; `slots` ascend."""
        return torch.searchsorted(slots, self._halo_ends).diff()

    def _exchange(self, requests: Sequence[Requests]) -> list[list[Tensor]]:
        """Own rows that each worker needs for each minibatch, int32 [K][W]."""
        return self._deliver(requests, [mine.rows for mine in requests], "vertices whose rows are wanted")

    def _deliver(self, requests: Sequence[Requests], facts: Sequence[Tensor], what: str) -> list[list[Tensor]]:
        """Facts of the vertices that are requested, as they come to their owners, [K][W]."""
        counts = torch.stack([mine.counts for mine in requests])
        asked = self.comm.all_gather(counts, "control", "numbers of vertices")[:, :, self.comm.worker]  # [W, K]
        pieces = [torch.split(fact, mine.counts.tolist()) for mine, fact in zip(requests, facts, strict=True)]
        sent = torch.cat([of_batch[worker] for worker in range(self.comm.num_workers) for of_batch in pieces])
        sizes = counts.sum(0).tolist(), asked.sum(1).tolist()
        received = all_to_all_v(self.comm, sent, *sizes, "ids", what)
        by_worker = torch.split(received, asked.flatten().tolist())
        return [list(by_worker[number :: len(requests)]) for number in range(len(requests))]

    # -- where sharing begins ------------------------------------------------------------------------------------

    def _begin_sharing(self, batches: Sequence[Batch]) -> None:
        """Replaces the vertices of a minibatch by own ones: those that any worker's part of it has."""
        owners = [self.book.owners(batch.nodes) for batch in batches]
        orders = [torch.argsort(owner, stable=True) for owner in owners]
        requests = []
        for batch, owner, order in zip(batches, owners, orders, strict=True):
            away = order[owner[order] != self.comm.worker]
            counts = torch.bincount(owner[away], minlength=self.comm.num_workers)
            requests.append(Requests((batch.nodes[away] - self.book.starts[owner[away]]).int(), counts))
        asked = self._exchange(requests)
        facts = self._facts_of(requests, asked)
        for batch, owner, order, mine, theirs, (ids, scale) in zip(
            batches, owners, orders, requests, asked, facts, strict=True
        ):
            here = owner == self.comm.worker
            own = (batch.nodes[here] - self.book.own.start).int()
            away = order[owner[order] != self.comm.worker]
            all_ids = _joined(here, self.neighbours.ids[own.long()], away, ids)
            scales = None
            if self._scale is not None and scale is not None:
                scales = _joined(here, self._scale[own.long()], away, scale)
            batch.first_shared = len(batch.hops)
            batch.nodes = own[:0]
            batch.sizes.pop()
            numbered = self._number(batch, torch.cat([own, *theirs]))
            columns = torch.empty(here.numel(), dtype=torch.int32)
            columns[here] = numbered[: own.numel()]
            columns[away] = torch.arange(away.numel(), dtype=torch.int32) + batch.sizes[-1]
            route = route_of(numbered[own.numel() :], theirs, mine.counts, batch.sizes[-1])
            hop = copying_hop(columns, RemoteSources(ids, None, route), batch.sizes[-1])
            batch.boundary, batch.counted = Boundary(hop, all_ids, scales, batch.counted), None

    def _facts_of(
        self, requests: Sequence[Requests], asked: Sequence[Sequence[Tensor]]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Global ids and scales of the vertices that this worker requested, by minibatch."""
        counts = torch.stack([mine.counts for mine in requests])
        sent = [torch.cat([of_batch[worker] for of_batch in asked]) for worker in range(self.comm.num_workers)]
        rows = torch.cat(sent).long()
        sizes = [part.numel() for part in sent], counts.sum(0).tolist()
        known = [self.neighbours.ids] if self._scale is None else [self.neighbours.ids, self._scale]
        received = [all_to_all_v(self.comm, fact[rows], *sizes, "topology", "facts of vertices") for fact in known]
        order = counts.t().flatten().tolist()
        by_batch = []
        for number in range(len(requests)):
            facts = [torch.cat(torch.split(fact, order)[number :: len(requests)]) for fact in received]
            by_batch.append((facts[0], facts[1] if len(facts) > 1 else None))
        return by_batch


def route_of(columns: Tensor, asked: Sequence[Tensor], counts: Tensor, num_in: int) -> Route:
    """Of a minibatch: `columns` are own rows that others need, `counts` how many rows come from each worker."""
    ends = ends_of(counts.tolist()).tolist()
    sent = torch.split(columns.long(), [rows.numel() for rows in asked])
    return Route(tuple(sent), tuple(slice(low, high) for low, high in pairwise(ends)), num_in, ends[-1])


def _joined(here: Tensor, own: Tensor, away: Tensor, others: Tensor) -> Tensor:
    """Facts of vertices put into one order: `own` where `here` says so, `others` at the places `away`."""
    out = torch.empty(here.numel(), dtype=own.dtype)
    out[here], out[away] = own, others
    return out
