"""The input rows of macrobatches: what minibatches read of their vertices, fetched for several of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.comm import BYTE_CLASSES, Communicator
from weft.graph.typedrows import Rows
from weft.partitioning import Shard
from weft.sample.batch import Batch
from weft.sample.book import PartitionBook
from weft.sample.config import Needs
from weft.sample.sampler import Sampler
from weft.sample.store import BatchRows, Column, Counts, Features, PlainRows, Store
from weft.sample.trial import Trial
from weft.sample.typedstore import BlockRows


@dataclass(frozen=True)
class CachedAggregate:
    """What the first layer takes of its constant input, aggregated once over all neighbours."""

    name: tuple[Any, ...]  # reduce, weight, by
    rows: Tensor  # [N, F] of this worker
    features: Features  # how they lie at rest
    reads_own: bool  # the layer wants the input rows too


@dataclass(frozen=True)
class Inputs:
    """What a pass over a minibatch begins with: rows and facts of its vertices, in its order."""

    x: Rows
    ids: Tensor  # int64, global
    scale: Tensor | None  # float64, of GCN's coefficients, where needed
    aggregates: dict[Any, Tensor] | None  # of the rows, by (reduce, weight, by); None: the first layer aggregates


@dataclass(frozen=True)
class Macrobatch:
    """Minibatches that were drawn and fetched together."""

    epoch: int
    batches: list[Batch]
    rows: list[BatchRows]
    counts: Counts
    sent: dict[str, int]  # bytes of drawing and fetching, by class


class Fetcher:
    """Draws macrobatches and fetches their rows; every worker takes part in every call."""

    def __init__(
        self,
        sampler: Sampler,
        shard: Shard,
        book: PartitionBook,
        comm: Communicator,
        x: Rows,
        needs: Needs,
        kept: PlainRows | BlockRows,
        cached: CachedAggregate | None = None,
    ) -> None:
        """`x`: this worker's input rows; `kept`: how they are kept. Learned ones are read where they lie."""
        self.steps, self.cached = sampler.steps, cached
        self._sampler, self._comm, self._x, self._kept = sampler, comm, x, kept
        self._first = book.own.start
        self._hops = needs.layers - (cached is not None)
        self._learned = x.requires_grad
        # A sampler whose workers share minibatches draws for own vertices alone, of which it knows ids and degrees. Of
        # any other's last hop ids are not known: there is nothing to draw from there.
        self._fetches_scale = needs.degrees and not sampler.shares and not sampler.timed
        fetches_rows = not self._learned and (cached is None or cached.reads_own)
        self._fetches_ids = not sampler.shares and (needs.ids or cached is not None)
        self._fetches_ids |= fetches_rows and kept.wants_ids
        columns: dict[str, Column] = {}
        if cached is not None:
            columns["aggregate"] = Column(cached.features.stored(cached.rows, shard.global_ids), "features")
        if self._fetches_scale:
            columns["scale"] = Column(sampler.symmetric_scale, "topology")
        if self._fetches_ids or comm.num_workers == 1:
            columns["ids"] = Column(shard.global_ids, "ids")
        ids = shard.global_ids
        self.store = kept.make_store(comm, book, columns, ids) if fetches_rows else Store(comm, book, columns)

    def keep_hot(self, trial: Trial, mebibytes: float) -> None:
        """Fetches the rows of other workers that minibatches read most often once and for all."""
        room = int(mebibytes * 2**20 / max(self.store.row_bytes(), 1))
        if room and self._comm.num_workers > 1:
            self.store.keep_hot(trial.hottest(room, without_last_hop=self.cached is not None))

    def fetch(self, epoch: int, steps: Sequence[int]) -> Macrobatch:
        """Draws the minibatches of these steps and fetches their rows."""
        before = dict(self._comm.sent)
        batches = self._sampler.draw(epoch, steps, self._hops)
        fetched = self.store.fetch([batch.nodes for batch in batches])
        rows = [fetched.batch(number) for number in range(len(batches))]
        sent = {kind: self._comm.sent[kind] - before[kind] for kind in BYTE_CLASSES}
        return Macrobatch(epoch, batches, rows, fetched.counts, sent)

    def inputs(self, batch: Batch, rows: BatchRows) -> Inputs:
        """Of one minibatch, out of what was fetched."""
        scale = rows.column("scale") if self._fetches_scale else batch.scale
        ids = rows.column("ids") if self._fetches_ids or batch.ids is None else batch.ids
        if self.cached is None:
            if self._learned:  # own rows alone, and as they are now
                return Inputs(self._x[batch.nodes.long() - self._first], ids, scale, None)
            return Inputs(self._kept.read(rows), ids, scale, None)
        aggregate = self.cached.features.read(rows.column("aggregate"))
        x = self._kept.read(rows) if self.cached.reads_own else aggregate
        return Inputs(x, ids, scale, {self.cached.name: aggregate})
