"""Counts of what each plan would do for the same minibatches: rows, edges and bytes of a step on each worker.

Nothing is trained and no row is fetched: minibatches are drawn as each plan draws them, and what the plan would read,
compute and send is counted from them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.partitioning import Shard
from weft.sample.batch import Batch
from weft.sample.book import PartitionBook
from weft.sample.config import Needs, Plan, SampleConfig, drawing_for
from weft.sample.moment_sampler import MomentSampler
from weft.sample.moment_split import SharedMomentSampler
from weft.sample.moments import Sees
from weft.sample.sampler import Sampler
from weft.sample.source import Source
from weft.sample.split import SharedSampler, Sharing
from weft.sample.trial import MOST_BATCHES

VALUE = 4  # bytes of a number in a row of a step


@dataclass(frozen=True)
class LayerShapes:
    """The layers of a model, from the input on: columns of their rows, and what their products cost."""

    widths: tuple[int, ...]  # columns of the input, then of each layer's output
    products: tuple[int, ...]  # multiplications for one row
    multiplies_sources: tuple[bool, ...]  # products are of input rows, as in attention, not of output rows

    def exchanged(self, layer: int) -> int:
        """Columns of the rows that a layer reads from other workers: multiplied first where that is narrower."""
        return min(self.widths[layer], self.widths[layer + 1])


@dataclass(frozen=True)
class PlanVariant:
    """A plan with the settings that can be chosen for it."""

    plan: Plan
    macrobatch_size: int = 1
    cached: bool = False  # whether aggregates of the input are
    alone_hops: int = 0

    def label(self) -> str:
        name = {"independent": "independent", "macrobatch": f"macrobatch K={self.macrobatch_size}"}.get(self.plan)
        if name is None:
            name = "split" if self.macrobatch_size == 1 else f"split K={self.macrobatch_size}"
            name += f", {self.alone_hops} hop{'s' * (self.alone_hops > 1)} alone" if self.alone_hops else ""
        return name + (", kept aggregates" if self.cached else "")


@dataclass(frozen=True)
class StepWork:
    """What a step takes on each worker, in the mean over steps; float64 [W]."""

    rows: Tensor  # of the input, that it reads
    remote: Tensor  # of those, from other workers
    edges: Tensor  # that it aggregates over
    reads: Tensor  # numbers that it reads for aggregates
    products: Tensor  # multiplications
    features: Tensor  # bytes of input rows that come
    structure: Tensor  # bytes that drawing sends
    hidden: Tensor  # bytes of rows that come in the step, gradients of rows included
    drawing: Tensor  # seconds that drawing took here
    rounds: float  # how many times workers wait for each other

    @property
    def edge_balance(self) -> float:
        """The largest share of the edges over the mean."""
        return float(self.edges.max() / self.edges.mean().clamp(min=1e-300))


_FIELDS = ("rows", "remote", "edges", "reads", "products", "features", "structure", "hidden", "drawing")


class WorkCounter:
    """Draws some minibatches of the first epoch as each plan would. Every worker takes part."""

    def __init__(
        self,
        shard: Shard,
        comm: Communicator,
        book: PartitionBook,
        source: Source,
        needs: Needs,
        config: SampleConfig,
        seed: int,
        shapes: LayerShapes,
        row_bytes: int,
        cached_width: int,
        trains_input: bool,
        sees: Sees = "all",
    ) -> None:
        """`cached_width`: columns of cached aggregates per column of the input; 0: none can be cached."""
        self._shard, self._comm, self._book, self._source = shard, comm, book, source
        self._needs, self._config, self._seed, self._shapes = needs, config, seed, shapes
        self._sees: Sees = sees
        self._row_bytes, self._cached_width, self._trains_input = row_bytes, cached_width, trains_input
        self.steps = min(MOST_BATCHES, source.steps)

    def count(self) -> dict[PlanVariant, StepWork]:
        found: dict[PlanVariant, StepWork] = {}
        drawing = drawing_for(self._config, self._needs, self._seed, self._sees)
        if not self._trains_input or self._comm.num_workers == 1:
            of_moments = MomentSampler if self._sees != "all" else Sampler
            sampler = of_moments(self._source, self._shard, self._book, self._comm, drawing)
            found |= self._of(sampler, "independent", 0)
        if self._comm.num_workers == 1:
            return found
        for alone in range(self._needs.layers if self._sees == "all" else 1):
            sharing = Sharing(alone, self._needs.layers - (not self._trains_input), self._needs.degrees)
            of_all = SharedMomentSampler if self._sees != "all" else SharedSampler
            shared = of_all(self._source, self._shard, self._book, self._comm, drawing, sharing)
            found |= self._of(shared, "split", alone)
        return found

    def _of(self, sampler: Sampler, plan: Plan, alone: int) -> dict[PlanVariant, StepWork]:
        before, started = dict(self._comm.sent), time.perf_counter()
        batches = sampler.draw(1, range(self.steps))
        took = (time.perf_counter() - started) / self.steps
        sent = sum(self._comm.sent[kind] - before[kind] for kind in ("ids", "topology")) / self.steps
        found = {}
        for cached in (False, True) if self._cached_width else (False,):
            levels = _Levels(batches, cached, self._shapes)
            base = self._work(levels, plan, sent, took)
            for size, rows, remote in self._growth(levels):
                name: Plan = "macrobatch" if plan == "independent" and size > 1 else plan
                width = self._row_bytes * (self._cached_width if cached else 1)
                mine = {**base, "rows": rows, "remote": remote, "features": remote * width}
                table = torch.tensor([mine[field] for field in _FIELDS], dtype=torch.float64)
                everyone = self._comm.all_gather(table, "control", "what plans take").T.contiguous()
                rounds = self._rounds(plan, size, cached, alone)
                found[PlanVariant(name, size, cached, alone)] = StepWork(
                    **dict(zip(_FIELDS, everyone, strict=True)), rounds=rounds
                )
        return found

    def _work(self, levels: "_Levels", plan: Plan, sent: float, took: float) -> dict[str, float]:
        """What steps compute and exchange, in the mean."""
        shapes, found = self._shapes, dict.fromkeys(_FIELDS, 0.0)
        for layer, rows_in, rows_out, edges, numbers in levels.all(self._needs.layers):
            found["edges"] += edges
            found["reads"] += edges * shapes.exchanged(layer)
            found["products"] += (rows_in if shapes.multiplies_sources[layer] else rows_out) * shapes.products[layer]
            found["hidden"] += 2 * numbers * VALUE
        found = {name: value / self.steps for name, value in found.items()}
        return {**found, "structure": sent, "drawing": took}

    def _growth(self, levels: "_Levels") -> Iterator[tuple[int, float, float]]:
        """(K, input rows of a step, those of other workers), for macrobatches of K minibatches."""
        own = self._book.own
        size = 1
        while size <= self.steps:
            rows = remote = 0
            for first in range(0, self.steps, size):
                wanted = torch.zeros(self._book.num_nodes, dtype=torch.bool)
                for nodes in levels.inputs[first : first + size]:
                    wanted[nodes.long()] = True
                count, mine = int(wanted.sum()), int(wanted[own.start : own.stop].sum())
                rows, remote = rows + count, remote + count - mine
            yield size, rows / self.steps, remote / self.steps
            size *= 2

    def _rounds(self, plan: Plan, macrobatch_size: int, cached: bool, alone: int) -> float:
        """Waits of a step: two for each hop that is drawn at other workers, one for each shared hop, two for rows."""
        hops = self._needs.layers - cached
        if plan == "independent":
            return (2 * hops + 2) / macrobatch_size + 1
        shared = hops - alone - (not cached and not self._trains_input)
        drawing = 2 * alone + (2 if alone else 0) + max(shared, 0)
        return (drawing + 2) / macrobatch_size + 2 * (max(shared, 0) + (alone > 0)) + 1


class _Levels:
    """The layers of some minibatches, with the input's aggregates cached or not."""

    def __init__(self, batches: Sequence[Batch], cached: bool, shapes: LayerShapes) -> None:
        self._batches, self._cached, self._shapes = batches, cached, shapes
        self.inputs = [batch.nodes[: batch.sizes[-2]] if cached else batch.nodes for batch in batches]

    def all(self, layers: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(layer, rows in, rows out, edges, numbers of others that come) of every layer of every minibatch."""
        for batch in self._batches:
            for hop, level in enumerate(batch.hops):
                layer, rows = layers - 1 - hop, level.csr.num_rows
                if self._cached and layer == 0:
                    yield 0, rows, rows, 0, 0
                    continue
                numbers = level.num_remote * self._shapes.exchanged(layer)
                yield layer, level.num_in, rows, level.csr.num_edges, numbers
            if batch.boundary is not None:
                layer, crossing = layers - batch.first_shared, batch.boundary.hop
                yield layer, 0, 0, 0, crossing.num_remote * self._shapes.widths[layer]
