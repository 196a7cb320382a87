"""Neighbourhoods of seeds, sampled hop by hop: a vertex's in-edges are drawn by the worker that owns it.

Each hop takes one exchange out, which names vertices to their owners, and one back, with the edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.graph.csr import CSR
from weft.kernels import gather, memory
from weft.kernels.hash import hash_key
from weft.kernels.sampling import Method, forget, number_known, number_new, sample
from weft.partitioning import Shard
from weft.sample.all_to_all import AllToAllV, all_to_all_v
from weft.sample.batch import Batch, Hop, RemoteSources
from weft.sample.book import PartitionBook
from weft.sample.counted import counted_once
from weft.sample.left_out import LeftOut, Unseen, without
from weft.sample.moments import Moments, Sees
from weft.sample.neighbours import Neighbours
from weft.sample.sampled import SampledEdges
from weft.sample.source import Source


@dataclass(frozen=True)
class Drawing:
    """How neighbourhoods are drawn."""

    fanouts: tuple[int, ...]  # of each hop, from the seeds on; -1: all neighbours
    method: Method
    seed: int
    loops_apart: bool = False
    dependent: int = 1  # this many consecutive steps draw alike
    counted: int = 0  # hops from the seeds within which batches tell on which worker a vertex counts
    sees: Sees = "all"  # of edges that have times
    scales: bool = False  # minibatches of moments tell GCN's coefficients


class Sampler:
    """Draws the neighbourhoods of a source's minibatches, several at a time; every worker takes part in every draw.

    Each worker draws around its own seeds, and asks the owners of other vertices for theirs.
    """

    shares = False  # whether a batch has own vertices alone, and rows of others are exchanged in the step

    def __init__(
        self,
        source: Source,
        shard: Shard,
        book: PartitionBook,
        comm: Communicator,
        drawing: Drawing,
        edge_ids: bool = False,
        left_out: LeftOut | None = None,
    ) -> None:
        """`edge_ids`: hops tell the index of each edge among this worker's, which must be the only one.

        `left_out`: edges that minibatches do not see, of own vertices.
        """
        assert not edge_ids or comm.num_workers == 1
        self.steps = source.steps
        self._source, self._tells_edge_ids = source, edge_ids
        self._left_out = left_out
        self._unseen: list[Unseen] = []  # of the minibatches that are being drawn
        self.book, self.comm, self.drawing = book, comm, drawing
        self.neighbours = Neighbours(shard, self.book, drawing.loops_apart, drawing.method == "weighted", drawing.sees)
        self._table = torch.full((self.book.num_nodes,), -1, dtype=torch.int32)
        facts: dict[str, Tensor | None] = {
            "ids": shard.global_ids.int() if comm.num_workers > 1 else None,  # one worker looks them up
            "weight_sums": None if self.timed else self.neighbours.weight_sums,
            "loop_weight": self._loop_weight(shard, comm, drawing.loops_apart),
        }
        inside = torch.tensor([int(self.neighbours.has_loops)])
        self._loops_inside = bool(comm.all_reduce(inside, "control", "loops", op="max"))
        self._facts = {name: fact for name, fact in facts.items() if fact is not None}

    def _loop_weight(self, shard: Shard, comm: Communicator, apart: bool) -> Tensor | None:
        """Weights of own vertices' loops, where any worker has one that is kept apart and has a weight."""
        mine = self.neighbours.loop_weight
        found = torch.tensor([int(mine is not None)])
        if not apart or not int(comm.all_reduce(found, "control", "weights of loops", op="max")):
            return None
        return torch.ones(shard.num_nodes, dtype=torch.float32) if mine is None else mine.float()

    @property
    def timed(self) -> bool:
        """Whether minibatches have moments: vertices at times."""
        return self.drawing.sees != "all"

    @property
    def symmetric_scale(self) -> Tensor:
        """1 / sqrt of own vertices' degrees, as GCN's coefficients want it, float64 [N]."""
        return self.neighbours.symmetric_scale

    def draw(self, epoch: int, steps: Sequence[int], hops: int | None = None) -> list[Batch]:
        """The minibatches of some steps; `hops` None: one for each fan-out."""
        return self.draw_around([self._source.seeds(epoch, step) for step in steps], epoch, steps, hops)

    def draw_around(
        self, seeds: Sequence[Tensor], epoch: int, steps: Sequence[int], hops: int | None = None
    ) -> list[Batch]:
        """The same around given seeds, int32 positions of vertices of any worker."""
        batches = [Batch(step, nodes, nodes, [nodes.numel()]) for step, nodes in zip(steps, seeds, strict=True)]
        return self._drawn_around(batches, epoch, hops)

    def _drawn_around(self, batches: list[Batch], epoch: int, hops: int | None) -> list[Batch]:
        if self.comm.num_workers > 1:
            self._draw_hops(batches, epoch, hops)
        else:  # there is nobody to ask for several at a time
            for batch in batches:
                self._draw_hops([batch], epoch, hops)
        return batches

    def _draw_hops(self, batches: Sequence[Batch], epoch: int, hops: int | None) -> None:
        if self._left_out is not None:
            self._unseen = [self._left_out.of(epoch, batch.step) for batch in batches]
        alone = len(batches) == 1  # then the table keeps its numbers from hop to hop
        if alone:
            number_known(self._table, batches[0].nodes)
        for hop, fanout in enumerate(self.drawing.fanouts[:hops]):
            frontiers = [batch.nodes for batch in batches]
            bounds = ends_of([frontier.numel() for frontier in frontiers])
            keys = self._keys(epoch, batches, hop)
            drawn = self._drawn(torch.cat(frontiers) if not alone else frontiers[0], bounds, keys, fanout)
            for batch, (low, high) in zip(batches, pairwise(bounds.tolist()), strict=True):
                if alone:
                    self._extend(batch, drawn, fanout)
                    continue
                number_known(self._table, batch.nodes)
                self._extend(batch, drawn.rows(low, high), fanout)
                forget(self._table, batch.nodes)
        if alone:
            forget(self._table, batches[0].nodes)
        within = min(self.drawing.counted, len(batches[0].hops))
        if within and self.comm.num_workers > 1:
            self._count(batches, [batch.sizes[: within + 1] for batch in batches])

    def _count(self, batches: Sequence[Batch], sizes: Sequence[Sequence[int]]) -> None:
        """Marks which vertices of minibatches count here, among those that are rows of layers."""
        nodes = [batch.nodes[: ends[-1]] for batch, ends in zip(batches, sizes, strict=True)]
        times = [batch.times[: ends[-1]] for batch, ends in zip(batches, sizes, strict=True) if batch.times is not None]
        found = counted_once(self.book, self.comm, nodes, sizes, times or None)
        for batch, counted in zip(batches, found, strict=True):
            batch.counted = counted

    def _keys(self, epoch: int, batches: Sequence[Batch], hop: int) -> Tensor:
        """One key for each minibatch, by which its draws differ from those of others."""
        steps = (batch.step - batch.step % self.drawing.dependent for batch in batches)
        return torch.tensor([hash_key(self.drawing.seed, epoch, step, hop) for step in steps])

    def _extend(self, batch: Batch, drawn: SampledEdges, fanout: int) -> None:
        """Adds a hop: its new vertices get the next numbers, in the order in which edges name them."""
        known = batch.sizes[-1]
        nodes = memory.empty((known + drawn.sources.numel() + 1,), torch.int32)
        nodes[:known] = batch.nodes
        count, columns = number_new(self._table, nodes, known, drawn.sources)
        batch.nodes = nodes[:count]
        if "ids" in drawn.facts:
            batch.ids = drawn.facts["ids"].long()
        batch.sizes.append(count)
        batch.hops.append(self._hop(drawn, CSR(drawn.indptr, columns, count, **drawn.edge_data), fanout))

    def _hop(self, drawn: SampledEdges, csr: CSR, fanout: int, remote: RemoteSources | None = None) -> Hop:
        facts = drawn.facts
        known = facts["degrees"], facts.get("weight_sums"), facts.get("loop_weight")
        last = facts.get("intervals"), facts.get("left_out")
        return Hop(csr, *known, self._loops_inside, fanout, remote, drawn.edge_ids, *last)

    def _drawn(
        self, nodes: Tensor, bounds: Tensor, keys: Tensor, fanout: int, times: Tensor | None = None
    ) -> SampledEdges:
        """In-edges of vertices wherever they are; minibatch m's are those from bounds[m] on. `times`: of moments."""
        if self.comm.num_workers == 1:
            return self._own(nodes, bounds, keys, fanout, times)
        asking = ask_owners(self.book, self.comm, nodes, bounds)
        rows = asking.send(nodes, "ids", "frontiers") - self.book.own.start
        their_times = None if times is None else asking.send(times, "ids", "times of frontiers")
        segments = ends_of(asking.asked.flatten().tolist())
        here = self._own(rows, segments, keys.repeat(self.comm.num_workers), fanout, their_times)
        here = replace(here, sources=gather(self.neighbours.positions, here.sources))
        return _in_order(self._send_back(here, asking.asked.sum(1), asking.counts.sum(1)), asking.order)

    def _own(
        self, rows: Tensor, bounds: Tensor, keys: Tensor, fanout: int, times: Tensor | None = None
    ) -> SampledEdges:
        """In-edges of own vertices; sources are own rows, and after those the halo's."""
        carried = self.neighbours.csr.edge_data
        told, history = bool(carried) or self._tells_edge_ids, self.neighbours.history
        first = None if history is None or times is None else history.first_edges(Moments(rows, times))
        drawn = sample(self.neighbours.edges, rows, bounds, keys, fanout, self.drawing.method, told, first)
        data = (
            {} if drawn.positions is None else {name: gather(whole, drawn.positions) for name, whole in carried.items()}
        )
        facts = {name: gather(fact, rows) for name, fact in self._facts.items()} | {"degrees": drawn.degrees}
        if drawn.intervals is not None:
            facts["intervals"] = drawn.intervals
        if history is not None:
            facts |= history.facts(rows, drawn.degrees, fanout if self.drawing.method == "last" else -1)
        edge_ids = drawn.positions if self._tells_edge_ids else None
        found = SampledEdges(drawn.indptr, drawn.columns, data, facts, edge_ids)
        return without(found, rows, bounds, self._unseen) if self._unseen else found

    def _send_back(self, drawn: SampledEdges, rows_to: Tensor, rows_from: Tensor) -> SampledEdges:
        """Sends what was drawn for other workers; returns what they drew for this one, in the order of workers."""
        edges_to = drawn.indptr[ends_of(rows_to.tolist())].diff()
        everyone = self.comm.all_gather(edges_to, "control", "sampled sizes")
        edges_from = everyone[:, self.comm.worker]

        by_row, by_edge = (rows_to.tolist(), rows_from.tolist()), (edges_to.tolist(), edges_from.tolist())
        posts = {"counts": AllToAllV(self.comm, drawn.indptr.diff().int(), *by_row, "topology", "sampled counts")}
        posts["sources"] = AllToAllV(self.comm, drawn.sources, *by_edge, "topology", "sampled sources")
        for name, data in drawn.edge_data.items():
            posts[name] = AllToAllV(self.comm, data, *by_edge, "topology", f"sampled {name}")
        for name, fact in drawn.facts.items():
            posts[name] = AllToAllV(self.comm, fact, *by_row, "topology", name)
        came = {name: post.wait() for name, post in posts.items()}
        return SampledEdges(
            torch.cat([torch.zeros(1, dtype=torch.int64), came["counts"].cumsum(0)]),
            came["sources"],
            {name: came[name] for name in drawn.edge_data},
            {name: came[name] for name in drawn.facts},
        )


@dataclass(frozen=True)
class Asking:
    """Vertices of any workers, which their owners are asked about."""

    comm: Communicator
    order: Tensor  # int64, in which the vertices go out: worker by worker
    counts: Tensor  # int64 [W, K], how many of each minibatch go to each worker
    asked: Tensor  # int64 [W, K], and how many come from it

    def send(self, facts: Tensor, kind: str, what: str) -> Tensor:
        """Facts of the vertices as they come to the owners."""
        sizes = self.counts.sum(1).tolist(), self.asked.sum(1).tolist()
        return all_to_all_v(self.comm, facts[self.order], *sizes, kind, what)

    def answer(self, facts: Tensor, kind: str, what: str) -> Tensor:
        """What the owners say of them, in the order of the vertices."""
        sizes = self.asked.sum(1).tolist(), self.counts.sum(1).tolist()
        came = all_to_all_v(self.comm, facts, *sizes, kind, what)
        out = torch.empty_like(came)
        out[self.order] = came
        return out


def ask_owners(book: PartitionBook, comm: Communicator, nodes: Tensor, bounds: Tensor) -> Asking:
    """`nodes` are positions; minibatch m's are those from bounds[m] on."""
    owners, num_batches = book.owners(nodes), bounds.numel() - 1
    batch = torch.repeat_interleave(torch.arange(num_batches), bounds.diff())
    counts = torch.bincount(owners * num_batches + batch, minlength=comm.num_workers * num_batches)
    counts = counts.view(comm.num_workers, num_batches)
    asked = comm.all_gather(counts, "control", "frontier sizes")[:, comm.worker]
    return Asking(comm, torch.argsort(owners, stable=True), counts, asked)


def ends_of(counts: Sequence[int]) -> Tensor:
    """Where consecutive runs of these lengths begin and end, int64 [n + 1]."""
    return torch.tensor([0, *counts]).cumsum(0)


def _in_order(drawn: SampledEdges, order: Tensor) -> SampledEdges:
    """Undoes a permutation of the rows: row k of `drawn` becomes row order[k]."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    counts = drawn.indptr.diff()[back]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    shift = torch.repeat_interleave(drawn.indptr[:-1][back] - indptr[:-1], counts)
    edges = shift + torch.arange(shift.numel())
    return replace(
        drawn,
        indptr=indptr,
        sources=drawn.sources[edges],
        edge_data={name: data[edges] for name, data in drawn.edge_data.items()},
        facts={name: fact[back] for name, fact in drawn.facts.items()},
    )
