"""Minibatches of moments that all workers share: what an owner computes once is a vertex at a time."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.graph.csr import CSR
from weft.kernels import gather
from weft.partitioning import Shard
from weft.sample.batch import Batch, RemoteSources
from weft.sample.book import PartitionBook
from weft.sample.moment_sampler import MomentSampler, add_moments, ends_at
from weft.sample.moments import Moments, join
from weft.sample.sampled import SampledEdges
from weft.sample.sampler import Drawing, ends_of
from weft.sample.source import Source
from weft.sample.split import Requests, SharedSampler, Sharing, route_of


class SharedMomentSampler(SharedSampler, MomentSampler):
    """Draws the minibatches of moments that all workers train together. While it draws, vertices are own rows."""

    def __init__(
        self, source: Source, shard: Shard, book: PartitionBook, comm: Communicator, drawing: Drawing, sharing: Sharing
    ) -> None:
        assert not sharing.first, "hops that workers do not share have no moments"
        super().__init__(source, shard, book, comm, drawing, Sharing(0, sharing.exchanged))
        self._wants_scales = sharing.scales

    def _draw_hops(self, batches: Sequence[Batch], epoch: int, hops: int | None) -> None:
        for batch in batches:
            batch.nodes = batch.nodes - self.book.own.start
        for hop, fanout in enumerate(self.drawing.fanouts[:hops]):
            bounds = ends_of([batch.nodes.numel() for batch in batches])
            rows, times = join([batch.moments for batch in batches])
            drawn = self._own(rows, bounds, self._keys(epoch, batches, hop), fanout, times)
            parts = [drawn.rows(low, high) for low, high in pairwise(bounds.tolist())]
            if hop < self._sharing.exchanged:
                self._share(batches, parts, fanout)
                continue
            for batch, part in zip(batches, parts, strict=True):
                count, columns = add_moments(batch, part)
                batch.hops.append(self._hop(part, CSR(part.indptr, columns, count, **part.edge_data), fanout))
        for batch in batches:
            batch.ids = gather(self.neighbours.ids, batch.nodes)
            batch.nodes = gather(self.neighbours.positions, batch.nodes)
        if self._wants_scales:
            for batch, scale in zip(batches, self._scales([batch.moments for batch in batches]), strict=True):
                batch.scale = scale
        if self.drawing.counted >= len(self.drawing.fanouts):  # vertices of the last hop may be others'
            self._count(batches, [batch.sizes[-2:] for batch in batches])

    def _share(self, batches: Sequence[Batch], parts: Sequence[SampledEdges], fanout: int) -> None:
        first = len(self.book.own)
        ends = [ends_at(batch, part) for batch, part in zip(batches, parts, strict=True)]
        halos = [_pick(end, end.nodes >= first).distinct() for end in ends]
        slots = [halo.nodes.long() - first for halo in halos]
        requests = [Requests(self._halo_rows[some], self._owned(some)) for some in slots]
        rows = self._exchange(requests)
        times = self._deliver(requests, [halo.times for halo in halos], "times of vertices")
        scales = self._halo_scales(halos)
        for number, (batch, part) in enumerate(zip(batches, parts, strict=True)):
            end, halo, here = ends[number], halos[number], ends[number].nodes < first
            own = _pick(end, here)
            asked = Moments(torch.cat(rows[number]), torch.cat(times[number]))
            (batch.nodes, batch.times), numbered = batch.moments.numbered(join([own, asked]))
            count = batch.nodes.numel()
            batch.sizes.append(count)
            columns = torch.empty_like(part.sources)
            columns[here] = numbered[: own.nodes.numel()]
            columns[~here] = halo.find(_pick(end, ~here)).int() + count
            route = route_of(numbered[own.nodes.numel() :], rows[number], requests[number].counts, count)
            remote = RemoteSources(self.neighbours.ids[halo.nodes.long()], scales[number], route)
            csr = CSR(part.indptr, columns, count + halo.nodes.numel(), **part.edge_data)
            batch.hops.append(self._hop(part, csr, fanout, remote))

    def _halo_scales(self, halos: Sequence[Moments]) -> Sequence[Tensor | None]:
        if not self._wants_scales:
            return [None] * len(halos)
        return self._scales([Moments(gather(self.neighbours.positions, some.nodes), some.times) for some in halos])


def _pick(moments: Moments, which: Tensor) -> Moments:
    return Moments(moments.nodes[which], moments.times[which])
