"""Sampling hop by hop: each vertex's in-edges are drawn by the worker that owns it, one exchange out and one back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from weft.aggregate.noise import hash_key
from weft.comm import Communicator
from weft.graph.graph import CSR
from weft.kernels import gather, memory
from weft.kernels.sampling import Method, forget, number_known, number_new, sample
from weft.partition import Shard
from weft.sample.batch import Away, Batch, Hop
from weft.sample.edges import Neighbours, Standing
from weft.sample.trade import Trade


@dataclass(frozen=True)
class Drawn:
    """In-edges of some vertices, as their owners drew them. Sources are where they stand."""

    indptr: Tensor  # int64 [R + 1]
    sources: Tensor  # int32 [S]
    edge_data: dict[str, Tensor]
    facts: dict[str, Tensor]  # of each vertex, [R]: degrees, ids, and where edges have weights, weight_sums, ...
    positions: Tensor | None = None  # int64 [S], where one worker is asked where its edges stand

    def rows(self, first: int, end: int) -> "Drawn":
        """Those of some vertices that follow one another."""
        low, high = int(self.indptr[first]), int(self.indptr[end])
        return Drawn(
            self.indptr[first : end + 1] - low,
            self.sources[low:high],
            {name: data[low:high] for name, data in self.edge_data.items()},
            {name: fact[first:end] for name, fact in self.facts.items()},
            None if self.positions is None else self.positions[low:high],
        )


@dataclass(frozen=True)
class Drawing:
    """How neighbourhoods are drawn."""

    fanouts: tuple[int, ...]  # of each hop, from the seeds on; -1: all neighbours
    method: Method
    seed: int
    loops_apart: bool = False
    dependent: int = 1  # so many steps that follow one another draw alike


class Sampler:
    """Draws the neighbourhoods of minibatches, several at a time; every worker takes part in every draw."""

    def __init__(
        self,
        shard: Shard,
        standing: Standing,
        comm: Communicator,
        drawing: Drawing,
        positions: bool = False,
    ) -> None:
        """`positions`: hops tell where their edges stand among this worker's, which must be the only one."""
        assert not positions or comm.num_workers == 1
        self._positions = positions
        self.standing, self.comm, self.drawing = standing, comm, drawing
        self.neighbours = Neighbours(shard, self.standing, drawing.loops_apart)
        self._table = torch.full((self.standing.num_nodes,), -1, dtype=torch.int32)
        facts: dict[str, Tensor | None] = {
            "ids": shard.global_ids.int() if comm.num_workers > 1 else None,  # one worker looks them up
            "weight_sums": self.neighbours.weight_sums,
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

    def draw(self, epoch: int, steps: Sequence[int], seeds: Sequence[Tensor], hops: int | None = None) -> list[Batch]:
        """The minibatches of some steps around seeds, vertices of any worker; `hops` None: one for each fan-out."""
        batches = [Batch(step, nodes, nodes, [nodes.numel()]) for step, nodes in zip(steps, seeds, strict=True)]
        if self.comm.num_workers > 1:
            self._draw_hops(batches, epoch, hops)
        else:  # there is nobody to ask for several at a time
            for batch in batches:
                self._draw_hops([batch], epoch, hops)
        return batches

    def _draw_hops(self, batches: Sequence[Batch], epoch: int, hops: int | None) -> None:
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

    def _keys(self, epoch: int, batches: Sequence[Batch], hop: int) -> Tensor:
        """By what each minibatch's draws are told apart."""
        steps = (batch.step - batch.step % self.drawing.dependent for batch in batches)
        return torch.tensor([hash_key(self.drawing.seed, epoch, step, hop) for step in steps])

    def _extend(self, batch: Batch, drawn: Drawn, fanout: int) -> None:
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

    def _hop(self, drawn: Drawn, csr: CSR, fanout: int, away: Away | None = None) -> Hop:
        facts = drawn.facts
        known = facts["degrees"], facts.get("weight_sums"), facts.get("loop_weight")
        return Hop(csr, *known, self._loops_inside, fanout, self.drawing.method, away, drawn.positions)

    def _drawn(self, nodes: Tensor, bounds: Tensor, keys: Tensor, fanout: int) -> Drawn:
        """In-edges of vertices wherever they are; minibatch m's are those from bounds[m] on."""
        if self.comm.num_workers == 1:
            return self._own(nodes, bounds, keys, fanout)
        owners = self.standing.owners(nodes)
        batch = torch.repeat_interleave(torch.arange(keys.numel()), bounds.diff())
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners * keys.numel() + batch, minlength=self.comm.num_workers * keys.numel())
        counts = counts.view(self.comm.num_workers, keys.numel())
        asked = self.comm.all_gather(counts, "control", "frontier sizes")[:, self.comm.worker]  # [W, K]
        rows_from, rows_to = counts.sum(1), asked.sum(1)
        wanted = Trade(self.comm, nodes[order], rows_from.tolist(), rows_to.tolist(), "ids", "frontiers").finish()
        rows = wanted - self.standing.own.start
        here = self._own(rows, ends_of(asked.flatten().tolist()), keys.repeat(self.comm.num_workers), fanout)
        here = replace(here, sources=gather(self.neighbours.address, here.sources))
        return _in_order(self._send_back(here, rows_to, rows_from), order)

    def _own(self, rows: Tensor, bounds: Tensor, keys: Tensor, fanout: int) -> Drawn:
        """In-edges of own vertices; sources are own rows, and after those the halo's."""
        carried = self.neighbours.csr.edge_data
        told = bool(carried) or self._positions
        drawn = sample(self.neighbours.edges, rows, bounds, keys, fanout, self.drawing.method, positions=told)
        data = {} if drawn.positions is None else {name: gather(all, drawn.positions) for name, all in carried.items()}
        facts = {name: gather(fact, rows) for name, fact in self._facts.items()}
        positions = drawn.positions if self._positions else None
        return Drawn(drawn.indptr, drawn.columns, data, {"degrees": drawn.degrees, **facts}, positions)

    def _send_back(self, drawn: Drawn, rows_to: Tensor, rows_from: Tensor) -> Drawn:
        """What was drawn for each worker goes there; what was drawn for this one comes, in the order of workers."""
        edges_to = drawn.indptr[ends_of(rows_to.tolist())].diff()
        everyone = self.comm.all_gather(edges_to, "control", "sampled sizes")
        edges_from = everyone[:, self.comm.worker]

        by_row, by_edge = (rows_to.tolist(), rows_from.tolist()), (edges_to.tolist(), edges_from.tolist())
        posts = {"counts": Trade(self.comm, drawn.indptr.diff().int(), *by_row, "topology", "sampled counts")}
        posts["sources"] = Trade(self.comm, drawn.sources, *by_edge, "topology", "sampled sources")
        for name, data in drawn.edge_data.items():
            posts[name] = Trade(self.comm, data, *by_edge, "topology", f"sampled {name}")
        for name, fact in drawn.facts.items():
            posts[name] = Trade(self.comm, fact, *by_row, "topology", name)
        came = {name: post.finish() for name, post in posts.items()}
        return Drawn(
            torch.cat([torch.zeros(1, dtype=torch.int64), came["counts"].cumsum(0)]),
            came["sources"],
            {name: came[name] for name in drawn.edge_data},
            {name: came[name] for name in drawn.facts},
        )


def ends_of(counts: Sequence[int]) -> Tensor:
    """Where runs of so many begin and end that follow one another, int64 [n + 1]."""
    return torch.tensor([0, *counts]).cumsum(0)


def _in_order(drawn: Drawn, order: Tensor) -> Drawn:
    """Rows that stand in the order `order` was made of, put back: row k of `drawn` becomes row order[k]."""
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
