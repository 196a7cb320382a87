"""Minibatches for training: drawn and fetched several at a time, the next ones while these train."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from weft.aggregate import GraphView
from weft.aggregate.topology import Topology
from weft.comm import KINDS, Communicator
from weft.kernels.sampling import Method
from weft.partition import Shard
from weft.sample.batch import Batch
from weft.sample.edges import Standing
from weft.sample.level import CachedLevel, SampledLevel
from weft.sample.sampler import Drawing, Sampler
from weft.sample.seeds import Source
from weft.sample.split import SharedSampler, Sharing
from weft.sample.store import AtRest, Column, Counts, Features, Fetched, Store

Plan = Literal["independent", "macrobatch", "split"]  # each worker its own; so, several at a time; all together

FANOUTS = (15, 10, 5)
LARGEST_AUTO = 16  # minibatches that are planned together where that is left to weft
SATURATED = 0.98  # twice as many minibatches must fetch fewer rows each than this share, or they are not joined


class SampleConfig(BaseModel):
    """Minibatches: how they are drawn, and how their rows come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: int = Field(1024, ge=1, description="training vertices of a step, over all workers together")
    fanout: tuple[int, ...] | None = Field(
        None, description="in-neighbours drawn at each hop, first those of the seeds; -1: all (default 15, 10, 5, 5...)"
    )
    method: Method = Field(
        "neighbour", description="so many of each vertex, alike; by edge weight; or labor: vertices choose alike"
    )
    macrobatch: int | Literal["auto"] = Field(
        "auto", description="minibatches that are drawn and fetched together (macrobatch, split); auto: while it pays"
    )
    alone_hops: int = Field(
        0, ge=0, description="hops from the seeds on that workers do not share, each having its own seeds' (plan split)"
    )
    dependent: int = Field(1, ge=1, description="steps that follow one another and draw alike: they share more rows")
    memory_mib: int = Field(1024, ge=1, description="rows held for coming minibatches, on each worker, at most")
    hot_mib: float = Field(0.0, ge=0.0, description="rows of other workers that are kept on each, hottest first")
    features: AtRest = Field(
        "float32", description="input rows at rest and on the wire; integers are rounded once, without bias"
    )
    cache_aggregates: Literal["auto", "always", "never"] = Field(
        "auto", description="aggregate constant input once, over all neighbours; auto: where fewer rows travel then"
    )
    overlap: bool = Field(True, description="draw and fetch the next minibatches while these train")


def fanouts_for(config: SampleConfig, layers: int) -> tuple[int, ...]:
    if config.fanout is not None:
        return config.fanout
    return (FANOUTS + FANOUTS[-1:] * layers)[:layers]


@dataclass(frozen=True)
class Aggregated:
    """What the first layer takes of its constant input, once and for all."""

    name: tuple[Any, ...]  # reduce, weight, by
    rows: Tensor  # [N, F] of this worker
    reads_own: bool  # the layer wants the input rows too


@dataclass
class Macro:
    """Minibatches that were planned together."""

    epoch: int
    batches: list[Batch]
    fetched: Fetched
    sent: dict[str, int]  # bytes of the planning, by class


@dataclass(frozen=True)
class Needs:
    """What a model wants to know of sampled vertices."""

    layers: int
    loops: bool  # every vertex with a loop, which is not left to the draw
    degrees: bool  # those of sources, for symmetric coefficients
    ids: bool  # global ids of all vertices, for what is keyed by them


@dataclass
class Growth:
    """Rows of other workers that 1, 2, 4, ... minibatches want together, on average over workers."""

    batches: list[int] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # with all hops
    shorter: list[float] = field(default_factory=list)  # without the last


def drawing_for(config: SampleConfig, needs: Needs, seed: int) -> Drawing:
    fanouts = fanouts_for(config, needs.layers)
    return Drawing(fanouts, config.method, seed, needs.loops, config.dependent)


class Planner:
    """Draws minibatches and fetches what they need, on connections of its own."""

    def __init__(
        self,
        shard: Shard,
        standing: Standing,
        comm: Communicator,
        x: Tensor,
        source: Source,
        needs: Needs,
        config: SampleConfig,
        seed: int,
        shares: bool = False,
    ) -> None:
        """`shares`: workers share each minibatch."""
        self.comm, self.source, self.config, self.needs = comm, source, config, needs
        self._shares = shares and comm.num_workers > 1
        drawing = drawing_for(config, needs, seed)
        if self._shares:
            exchanged = needs.layers - (not x.requires_grad)
            sharing = Sharing(config.alone_hops, exchanged, needs.degrees)
            self.sampler: Sampler = SharedSampler(shard, standing, comm, drawing, sharing)
        else:
            self.sampler = Sampler(shard, standing, comm, drawing)
        self.features = Features(config.features, x.shape[1], x.dtype)
        self.aggregated: Aggregated | None = None
        self._shard, self._x = shard, x
        self._trains_input = x.requires_grad
        self.store: Store | None = None

    # -- what is decided before training -------------------------------------------------------------------------

    def probe(self, minibatches: int) -> list[Batch]:
        """Some minibatches of the first epoch, drawn to see what they are like."""
        steps = range(min(minibatches, self.source.steps))
        return self.sampler.draw(1, steps, [self.source.nodes(1, step) for step in steps])

    def growth(self, batches: Sequence[Batch]) -> Growth:
        """How the rows that minibatches want of other workers (of all, where there is one) grow with their number."""
        growth = Growth()
        counts: list[tuple[int, int]] = []
        seen = torch.zeros(2, self.sampler.standing.num_nodes, dtype=torch.bool)
        own = self.sampler.standing.own
        for number, batch in enumerate(batches, 1):
            seen[0, batch.nodes.long()] = True
            seen[1, batch.nodes[: batch.sizes[-2]].long()] = True
            if number & (number - 1) == 0 or number == len(batches):
                mine = seen[:, own.start : own.stop].sum(1) if self.comm.num_workers > 1 else torch.zeros(2)
                whole, shorter = (seen.sum(1) - mine).long().tolist()
                growth.batches.append(number)
                counts.append((whole, shorter))
        total = torch.tensor(counts, dtype=torch.float64) / self.comm.num_workers
        self.comm.all_reduce(total, "control", "rows that minibatches want")
        growth.whole, growth.shorter = total[:, 0].tolist(), total[:, 1].tolist()
        return growth

    def open_store(self, aggregated: Aggregated | None, probed: Sequence[Batch]) -> Store:
        """The rows that minibatches will want, hot ones fetched."""
        self.aggregated = aggregated
        ids = self._shard.global_ids
        columns: dict[str, Column] = {}
        if not self._trains_input and (aggregated is None or aggregated.reads_own):
            columns["x"] = Column(self.features.stored(self._x, ids), "features")
        if aggregated is not None:
            columns["aggregate"] = Column(self.features.stored(aggregated.rows, ids), "features")
        if self.needs.degrees and not self._shares:
            columns["scale"] = Column(self.sampler.neighbours.symmetric_scale, "topology")
        if self._fetches_ids or self.comm.num_workers == 1:
            columns["ids"] = Column(ids, "ids")
        store = Store(self.comm, self.sampler.standing, columns)
        room = int(self.config.hot_mib * 2**20 / max(store.row_bytes(), 1))
        if room and self.comm.num_workers > 1:
            store.keep_hot(self._hottest(probed, room))
        self.store = store
        return store

    @property
    def _fetches_ids(self) -> bool:
        """Global ids of a minibatch's last hop are not told by who draws it: there is nothing to draw from there.

        Who draws for its own vertices alone knows them.
        """
        return not self._shares and (self.needs.ids or self.aggregated is not None)

    def _hottest(self, batches: Sequence[Batch], room: int) -> Tensor:
        """Vertices of other workers that minibatches want most often, int32."""
        counts = torch.zeros(self.sampler.standing.num_nodes, dtype=torch.int32)
        for batch in batches:
            nodes = self._inputs(batch)
            counts.index_add_(0, nodes.long(), torch.ones(nodes.numel(), dtype=torch.int32))
        own = self.sampler.standing.own
        counts[own.start : own.stop] = 0
        found = counts.nonzero().squeeze(1)
        order = torch.argsort(counts[found], descending=True, stable=True)
        return found[order[:room]].sort().values.int()

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(self, epoch: int, steps: Sequence[int]) -> Macro:
        """Draws the minibatches of these steps and fetches their rows; every worker at the same time."""
        assert self.store is not None
        before = dict(self.comm.sent)
        hops = self.needs.layers - (self.aggregated is not None)
        batches = self.sampler.draw(epoch, steps, [self.source.nodes(epoch, step) for step in steps], hops)
        fetched = self.store.fetch([batch.nodes for batch in batches])
        return Macro(epoch, batches, fetched, {kind: self.comm.sent[kind] - before[kind] for kind in KINDS})

    def _inputs(self, batch: Batch) -> Tensor:
        """Vertices whose rows a minibatch reads."""
        return batch.nodes if self.aggregated is None else batch.nodes[: batch.sizes[self.needs.layers - 1]]

    def enter(self, view: GraphView, macro: Macro, number: int) -> Tensor:
        """Prepares the view for a pass over a minibatch; returns its input rows."""
        batch, fetched = macro.batches[number], macro.fetched
        scale = fetched.of(number, "scale") if self.needs.degrees and not self._shares else batch.scale
        ids = fetched.of(number, "ids") if self._fetches_ids or batch.ids is None else batch.ids
        base, first = view.topology, batch.first_shared
        levels: list[Topology] = [SampledLevel(base, hop, ids, scale) for hop in reversed(batch.hops[first:])]
        if self.aggregated is not None:
            levels.insert(0, CachedLevel(base, ids))
        entrances: dict[int, Topology] = {}
        if batch.entrance is not None:
            entrances[len(levels)] = SampledLevel(base, batch.entrance.hop, ids, None)
            alone = batch.entrance.ids, batch.entrance.scale
            levels += [SampledLevel(base, hop, *alone) for hop in reversed(batch.hops[:first])]
        if self.aggregated is None:
            x = self._input(batch, number, fetched)
            view.sampled(levels, x, entrances=entrances)
            return x
        aggregate = self.features.read(fetched.of(number, "aggregate"))
        x = self.features.read(fetched.of(number, "x")) if self.aggregated.reads_own else aggregate
        view.sampled(levels, x, {self.aggregated.name: aggregate}, entrances)
        return x

    def _input(self, batch: Batch, number: int, fetched: Fetched) -> Tensor:
        if self._trains_input:  # all of them own: fetched ahead, others' would be those of steps before
            return self._x[batch.nodes.long() - self.sampler.standing.own.start]
        return self.features.read(fetched.of(number, "x"))


class Minibatches:
    """The minibatches of every epoch, in order; those that come next are planned meanwhile."""

    def __init__(self, planner: Planner, together: int, last_epoch: int, overlap: bool) -> None:
        self.planner, self.together, self.counts = planner, together, Counts()
        self._last = last_epoch
        self._pool = ThreadPoolExecutor(1, "weft-plan") if overlap else None
        self._ahead: tuple[tuple[int, int], Future[Macro]] | None = None

    @property
    def steps(self) -> int:
        return self.planner.source.steps

    def described(self) -> dict[str, Any]:
        """For summaries: how many there are, and how they are planned."""
        kept = self.planner.aggregated is not None
        return {"steps": self.steps, "together": self.together, "kept_aggregates": kept}

    def epoch(self, epoch: int) -> Iterator[Macro]:
        for first in range(0, self.steps, self.together):
            macro = self._next(epoch, first)
            self.counts.add(macro.fetched.counts)
            yield macro

    def _next(self, epoch: int, first: int) -> Macro:
        if self._pool is None:
            return self._plan(epoch, first)
        ahead = self._ahead
        macro = ahead[1].result() if ahead is not None and ahead[0] == (epoch, first) else self._plan(epoch, first)
        following = (epoch, first + self.together) if first + self.together < self.steps else (epoch + 1, 0)
        self._ahead = None
        if following[0] <= self._last:  # on consumption, so that all workers have the same plans under way
            self._ahead = following, self._pool.submit(self._plan, *following)
        return macro

    def _plan(self, epoch: int, first: int) -> Macro:
        return self.planner.plan(epoch, range(first, min(first + self.together, self.steps)))

    def close(self) -> None:
        """Ends when what is under way has ended: other workers take part in it, so it is not broken off."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def choose_together(growth: Growth, row_bytes: int, memory_bytes: int) -> int:
    """How many minibatches to plan together: twice as many while that saves rows, and fits in memory."""
    chosen = 1
    for at in range(1, len(growth.batches)):
        number, rows = growth.batches[at], growth.whole[at]
        per_batch, before = rows / number, growth.whole[at - 1] / growth.batches[at - 1]
        if number > LARGEST_AUTO or 2 * rows * row_bytes > memory_bytes or per_batch > SATURATED * before:
            break
        chosen = number
    return chosen


def aggregating_pays(growth: Growth, together: int, reads_own: bool) -> bool:
    """Whether fewer rows travel where the last hop is replaced by aggregates of the one before."""
    at = growth.batches.index(together) if together in growth.batches else -1
    return growth.shorter[at] * (2 if reads_own else 1) < growth.whole[at]
