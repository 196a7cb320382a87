"""What each plan would do for the same minibatches, counted: rows, edges and bytes of a step, worker by worker.

Nothing is trained and no row is fetched: minibatches are drawn as each plan draws them, and what it would read, compute
and send follows from them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.partition import Shard
from weft.sample.batch import Batch
from weft.sample.edges import Standing
from weft.sample.plan import LARGEST_AUTO, Needs, Plan, SampleConfig, drawing_for
from weft.sample.sampler import Sampler
from weft.sample.seeds import Source
from weft.sample.split import SharedSampler, Sharing

VALUE = 4  # bytes of a number in a row of a step


@dataclass(frozen=True)
class Shape:
    """Of each layer, from the input on: how wide rows go in and come out, and what its products cost a row."""

    widths: tuple[int, ...]  # the input's, then what comes out of each layer
    products: tuple[int, ...]  # multiplications for one row
    multiplies_sources: tuple[bool, ...]  # for every row that goes in, as attention does, not for those that come out

    def exchanged(self, layer: int) -> int:
        """How wide the rows are that a layer reads of other workers: multiplied first where that is narrower."""
        return min(self.widths[layer], self.widths[layer + 1])


@dataclass(frozen=True)
class Setting:
    """A plan, with what can be chosen about it."""

    plan: Plan
    together: int = 1
    kept: bool = False  # aggregates of the input
    alone_hops: int = 0

    def label(self) -> str:
        name = {"independent": "independent", "macrobatch": f"macrobatch K={self.together}"}.get(self.plan)
        if name is None:
            name = "split" if self.together == 1 else f"split K={self.together}"
            name += f", {self.alone_hops} hop{'s' * (self.alone_hops > 1)} alone" if self.alone_hops else ""
        return name + (", kept aggregates" if self.kept else "")


@dataclass(frozen=True)
class Work:
    """What a step takes of each worker, in the mean over steps; float64 [W]."""

    rows: Tensor  # of the input, that it reads
    remote: Tensor  # of those, from other workers
    edges: Tensor  # that it aggregates over
    reads: Tensor  # numbers that it reads for aggregates
    products: Tensor  # multiplications
    features: Tensor  # bytes of input rows that come
    structure: Tensor  # bytes that drawing sends
    hidden: Tensor  # bytes of rows that come in the step, gradients of rows included
    drawing: Tensor  # seconds that drawing took here
    rounds: float  # times that workers wait for each other

    @property
    def imbalance(self) -> float:
        """The largest share of the edges over the mean."""
        return float(self.edges.max() / self.edges.mean().clamp(min=1e-300))


_FIELDS = ("rows", "remote", "edges", "reads", "products", "features", "structure", "hidden", "drawing")


class Counter:
    """Draws some minibatches of the first epoch as each plan would. Every worker takes part."""

    def __init__(
        self,
        shard: Shard,
        comm: Communicator,
        standing: Standing,
        source: Source,
        needs: Needs,
        config: SampleConfig,
        seed: int,
        shape: Shape,
        row_bytes: int,
        keeping: int,
        trains_input: bool,
    ) -> None:
        """`keeping`: columns as wide as the input that kept aggregates take a vertex; 0: they cannot be kept."""
        self._shard, self._comm, self._standing, self._source = shard, comm, standing, source
        self._needs, self._config, self._seed, self._shape = needs, config, seed, shape
        self._row_bytes, self._keeping, self._trains_input = row_bytes, keeping, trains_input
        self.steps = min(LARGEST_AUTO, source.steps)

    def count(self) -> dict[Setting, Work]:
        found: dict[Setting, Work] = {}
        drawing = drawing_for(self._config, self._needs, self._seed)
        if not self._trains_input or self._comm.num_workers == 1:
            sampler = Sampler(self._shard, self._standing, self._comm, drawing)
            found |= self._of(sampler, "independent", 0)
        if self._comm.num_workers == 1:
            return found
        for alone in range(self._needs.layers):
            sharing = Sharing(alone, self._needs.layers - (not self._trains_input), self._needs.degrees)
            shared = SharedSampler(self._shard, self._standing, self._comm, drawing, sharing)
            found |= self._of(shared, "split", alone)
        return found

    def _of(self, sampler: Sampler, plan: Plan, alone: int) -> dict[Setting, Work]:
        before, started = dict(self._comm.sent), time.perf_counter()
        steps = range(self.steps)
        batches = sampler.draw(1, steps, [self._source.nodes(1, step) for step in steps])
        took = (time.perf_counter() - started) / self.steps
        sent = sum(self._comm.sent[kind] - before[kind] for kind in ("ids", "topology")) / self.steps
        found = {}
        for kept in (False, True) if self._keeping else (False,):
            levels = _Levels(batches, kept, self._shape)
            base = self._work(levels, plan, sent, took)
            for together, rows, remote in self._growth(levels):
                name: Plan = "macrobatch" if plan == "independent" and together > 1 else plan
                width = self._row_bytes * (self._keeping if kept else 1)
                mine = {**base, "rows": rows, "remote": remote, "features": remote * width}
                table = torch.tensor([mine[field] for field in _FIELDS], dtype=torch.float64)
                everyone = self._comm.all_gather(table, "control", "what plans take").T.contiguous()
                rounds = self._rounds(plan, together, kept, alone)
                found[Setting(name, together, kept, alone)] = Work(
                    **dict(zip(_FIELDS, everyone, strict=True)), rounds=rounds
                )
        return found

    def _work(self, levels: "_Levels", plan: Plan, sent: float, took: float) -> dict[str, float]:
        """What steps compute and exchange, in the mean."""
        shape, found = self._shape, dict.fromkeys(_FIELDS, 0.0)
        for layer, rows_in, rows_out, edges, numbers in levels.all(self._needs.layers):
            found["edges"] += edges
            found["reads"] += edges * shape.exchanged(layer)
            found["products"] += (rows_in if shape.multiplies_sources[layer] else rows_out) * shape.products[layer]
            found["hidden"] += 2 * numbers * VALUE
        found = {name: value / self.steps for name, value in found.items()}
        return {**found, "structure": sent, "drawing": took}

    def _growth(self, levels: "_Levels") -> Iterator[tuple[int, float, float]]:
        """(K, input rows of a step, those of other workers), where K minibatches are fetched together."""
        own = self._standing.own
        together = 1
        while together <= self.steps:
            rows = remote = 0
            for first in range(0, self.steps, together):
                wanted = torch.zeros(self._standing.num_nodes, dtype=torch.bool)
                for nodes in levels.inputs[first : first + together]:
                    wanted[nodes.long()] = True
                count, mine = int(wanted.sum()), int(wanted[own.start : own.stop].sum())
                rows, remote = rows + count, remote + count - mine
            yield together, rows / self.steps, remote / self.steps
            together *= 2

    def _rounds(self, plan: Plan, together: int, kept: bool, alone: int) -> float:
        """Waits of a step: two for each hop that is drawn elsewhere, one for hops that are shared, two for rows."""
        hops = self._needs.layers - kept
        if plan == "independent":
            return (2 * hops + 2) / together + 1
        shared = hops - alone - (not kept and not self._trains_input)
        drawing = 2 * alone + (2 if alone else 0) + max(shared, 0)
        return (drawing + 2) / together + 2 * (max(shared, 0) + (alone > 0)) + 1


class _Levels:
    """The layers of some minibatches, where the input's aggregates are kept or not."""

    def __init__(self, batches: Sequence[Batch], kept: bool, shape: Shape) -> None:
        self._batches, self._kept, self._shape = batches, kept, shape
        self.inputs = [batch.nodes[: batch.sizes[-2]] if kept else batch.nodes for batch in batches]

    def all(self, layers: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(layer, rows in, rows out, edges, numbers of others that come) of every layer of every minibatch."""
        for batch in self._batches:
            for hop, level in enumerate(batch.hops):
                layer, rows = layers - 1 - hop, level.csr.num_rows
                if self._kept and layer == 0:
                    yield 0, rows, rows, 0, 0
                    continue
                away = 0 if level.away is None else level.away.ids.numel()
                yield layer, level.num_in, rows, level.csr.num_edges, away * self._shape.exchanged(layer)
            if batch.entrance is not None and batch.entrance.hop.away is not None:
                layer = layers - batch.first_shared
                yield layer, 0, 0, 0, batch.entrance.hop.away.ids.numel() * self._shape.widths[layer]
