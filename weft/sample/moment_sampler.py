"""Minibatches of moments, where edges have times: around each seed, only what it sees at its own time is drawn."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from weft.graph.csr import CSR
from weft.sample.batch import Batch
from weft.sample.moments import Moments, join
from weft.sample.sampled import SampledEdges
from weft.sample.sampler import Sampler, ask_owners, ends_of


class MomentSampler(Sampler):
    """A sampler whose minibatches have moments. What one draws is keyed by its vertex and its time."""

    def draw(self, epoch: int, steps: Sequence[int], hops: int | None = None) -> list[Batch]:
        return self.draw_around_moments([self._source.moments(epoch, step) for step in steps], epoch, steps, hops)

    def draw_around_moments(
        self, seeds: Sequence[Moments], epoch: int, steps: Sequence[int], hops: int | None = None
    ) -> list[Batch]:
        """The minibatches around given seeds, moments of vertices of any worker."""
        return self._drawn_around([batch_of(*pair) for pair in zip(steps, seeds, strict=True)], epoch, hops)

    def _draw_hops(self, batches: Sequence[Batch], epoch: int, hops: int | None) -> None:
        for hop, fanout in enumerate(self.drawing.fanouts[:hops]):
            bounds = ends_of([batch.nodes.numel() for batch in batches])
            nodes, times = join([batch.moments for batch in batches])
            drawn = self._drawn(nodes, bounds, self._keys(epoch, batches, hop), fanout, times)
            for batch, (low, high) in zip(batches, pairwise(bounds.tolist()), strict=True):
                part = drawn.rows(low, high)
                count, columns = add_moments(batch, part)
                if "ids" in part.facts:
                    batch.ids = part.facts["ids"].long()
                batch.hops.append(self._hop(part, CSR(part.indptr, columns, count, **part.edge_data), fanout))
        if self.drawing.scales:
            for batch, scale in zip(batches, self._scales([batch.moments for batch in batches]), strict=True):
                batch.scale = scale
        within = min(self.drawing.counted, len(batches[0].hops))
        if within and self.comm.num_workers > 1:
            self._count(batches, [batch.sizes[: within + 1] for batch in batches])

    def _scales(self, wanted: Sequence[Moments]) -> Sequence[Tensor]:
        """GCN's coefficients of moments, whose owners know their degrees, by minibatch; all workers together."""
        history = self.neighbours.history
        assert history is not None
        bounds = ends_of([some.nodes.numel() for some in wanted])
        nodes, times = join(wanted)
        if self.comm.num_workers == 1:
            return torch.split(history.symmetric_scale(Moments(nodes, times)), bounds.diff().tolist())
        asking = ask_owners(self.book, self.comm, nodes, bounds)
        rows = asking.send(nodes, "ids", "vertices whose degrees are wanted") - self.book.own.start
        here = Moments(rows, asking.send(times, "ids", "times of vertices"))
        scale = asking.answer(history.symmetric_scale(here), "topology", "degrees of vertices")
        return torch.split(scale, bounds.diff().tolist())


def batch_of(step: int, seeds: Moments) -> Batch:
    """A minibatch that has nothing yet but its seeds."""
    return Batch(step, seeds.nodes, seeds.nodes, [seeds.nodes.numel()], times=seeds.times, seed_times=seeds.times)


def ends_at(batch: Batch, drawn: SampledEdges) -> Moments:
    """The sources of drawn edges, at the times of the edges' rows."""
    rows = torch.arange(drawn.indptr.numel() - 1).repeat_interleave(drawn.indptr.diff())
    return Moments(drawn.sources, batch.moments.times[rows])


def add_moments(batch: Batch, drawn: SampledEdges) -> tuple[int, Tensor]:
    """Adds the ends of drawn edges, at the times of their rows; how many moments the minibatch has now, and the number
    of each end among them, int32."""
    (batch.nodes, batch.times), columns = batch.moments.numbered(ends_at(batch, drawn))
    batch.sizes.append(batch.nodes.numel())
    return batch.sizes[-1], columns
