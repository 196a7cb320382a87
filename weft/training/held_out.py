"""Edges that training does not see, and by which link prediction is evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.csr import filter_csr, row_numbers
from weft.kernels.hash import splitmix64
from weft.partitioning import Shard
from weft.sample import LinkSource, PartitionBook
from weft.sample.all_to_all import all_to_all_v
from weft.sample.negatives import NonEdges, in_edges
from weft.sample.source import edge_key, pair_key
from weft.training.by_time import time_borders
from weft.training.settings import LinkConfig

_HELD_OUT = 0x68656C64  # tells the draw of held-out edges from others


@dataclass(frozen=True)
class Ends:
    """The two ends of some edges, whose tails are own vertices: their positions and their global ids.

    Turned ones (`turned`) are edges whose heads are own vertices: there "head" and "tail" have changed places.
    """

    heads: Tensor  # int32 [E]
    tails: Tensor  # int32 [E]
    head_ids: Tensor  # int64 [E]
    tail_ids: Tensor  # int64 [E]
    relations: Tensor | None = None  # int64 [E]
    columns: Tensor | None = None  # int64 [E], of in-edges of a shard: heads as own rows and then halo slots
    weight: Tensor | None = None
    times: Tensor | None = None  # float64 [E]

    @property
    def count(self) -> int:
        return self.heads.numel()

    @staticmethod
    def of(shard: Shard, book: PartitionBook) -> "Ends":
        """Those of all of a shard's edges."""
        own = book.own_positions()
        found: list[tuple[Tensor, ...]] = []
        for csr, positions, ids, first in (
            (shard.local, own, shard.global_ids, 0),
            (shard.remote, book.halo_positions(shard), shard.halo_ids, shard.num_nodes),
        ):
            rows, columns = row_numbers(csr.indptr), csr.indices.long()
            found.append((positions[columns], own[rows], ids[columns], shard.global_ids[rows], columns + first))
        heads, tails, head_ids, tail_ids, columns = (torch.cat(parts) for parts in zip(*found, strict=True))
        relations = weight = times = None
        if shard.local.relation is not None and shard.remote.relation is not None:
            relations = torch.cat([shard.local.relation, shard.remote.relation]).long()
        if shard.local.weight is not None and shard.remote.weight is not None:
            weight = torch.cat([shard.local.weight, shard.remote.weight])
        if shard.local.time is not None and shard.remote.time is not None:
            times = torch.cat([shard.local.time, shard.remote.time])
        return Ends(heads, tails, head_ids, tail_ids, relations, columns, weight, times)

    @property
    def loops(self) -> Tensor:
        """Which edges lead from a vertex to itself, bool: they stay in the graph, but are not learned."""
        return self.head_ids == self.tail_ids

    @property
    def pairs(self) -> Tensor:
        """One number of each edge, the same of its reverse."""
        low, high = torch.minimum(self.head_ids, self.tail_ids), torch.maximum(self.head_ids, self.tail_ids)
        return low * 2**31 + high

    def pick(self, which: Tensor) -> "Ends":
        def some(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[which]

        ends = self.heads[which], self.tails[which], self.head_ids[which], self.tail_ids[which]
        carried = some(self.relations), some(self.columns), some(self.weight), some(self.times)
        return Ends(*ends, *carried)

    def links(
        self,
        book: PartitionBook,
        absent: NonEdges | Sequence[NonEdges],
        batch: int,
        negatives: int,
        seed: int,
        comm: Communicator,
        kinds: Tensor | None = None,
        both_ways: bool = False,
        pooled: bool = False,
    ) -> LinkSource:
        ends = self.heads, self.tails, self.head_ids, self.tail_ids
        return LinkSource(
            *ends, book, absent, batch, negatives, seed, comm, self.relations, kinds, both_ways, pooled, self.times
        )

    def turned(self, book: PartitionBook, comm: Communicator) -> "Ends":
        """The same edges on the workers that own their heads, which are the tails here. A collective call."""
        owners = book.owners(self.heads)
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=comm.num_workers)
        asked = comm.all_gather(counts, "control", "numbers of edges")[:, comm.worker]
        none = torch.full_like(self.head_ids, -1)
        facts = [self.tails.long(), self.heads.long(), self.tail_ids, self.head_ids]
        facts.append(none if self.relations is None else self.relations)
        facts.append(none if self.times is None else self.times.view(torch.int64))  # their bits
        rows = torch.stack(facts, 1)[order]
        came = all_to_all_v(comm, rows, counts.tolist(), asked.tolist(), "topology", "edges by their heads")
        heads, tails, head_ids, tail_ids, relations, bits = (column.contiguous() for column in came.unbind(1))
        turned = Ends(heads.int(), tails.int(), head_ids, tail_ids, None if self.relations is None else relations)
        return turned if self.times is None else replace(turned, times=bits.view(torch.float64))


@dataclass(frozen=True)
class GivenEdges:
    """Edges of one split as files give them, the same on every worker: global ids, and the relation if it is named."""

    heads: Tensor  # int64 [E]
    tails: Tensor
    relations: Tensor | None = None
    times: Tensor | None = None  # float64 [E]

    def owned(self, book: PartitionBook, learned: Sequence[int] | None, needs_relations: bool, what: str) -> Ends:
        """Those whose tails are own vertices, of relations that are learned; None: of all."""
        relations = self.relations
        if relations is None and learned is not None and len(learned) == 1:
            relations = torch.full_like(self.heads, learned[0])
        if relations is None and needs_relations:
            raise UserError(f"{what} says no relations, and edges of several are learned: give it a column 'relation'")
        heads, tails = book.positions(self.heads), book.positions(self.tails)
        mine = (tails >= book.own.start) & (tails < book.own.stop)
        own = None if relations is None else relations[mine]
        times = None if self.times is None else self.times[mine]
        ends = Ends(heads[mine], tails[mine], self.heads[mine], self.tails[mine], own, times=times)
        return ends.pick(_of_relations(ends, learned))


class HeldOut:
    """Edges that training does not see: both directions of a pair go together.

    They are chosen by a hash of their ends, or given. `absent` are pairs that are no edges of the whole graph,
    held-out ones being edges too. Where times are heeded, those held out by time stay in the graph (`in_graph`): what
    is learned is earlier than they are, and sees what is earlier still.
    """

    def __init__(
        self,
        shard: Shard,
        comm: Communicator,
        config: LinkConfig,
        seed: int,
        given: dict[str, GivenEdges] | None = None,
        relations: Sequence[int] | None = None,
        reverses: Sequence[int] = (),
        by_time: bool = False,
        in_graph: bool = False,
    ) -> None:
        """`given`: the edges of val and test. `relations`: those that are learned, all unless given; `reverses`: those
        whose edges run the other way beside them, and are held out with them. `by_time`: the newest are held out, which
        stay `in_graph` where nobody sees later edges anyway."""
        if given is None and config.val + config.test >= 1.0:
            raise UserError(f"link.val {config.val} and link.test {config.test} leave no edge to train on")
        book = PartitionBook(shard, comm)
        self.given, self.relations, self.turned = given is not None, relations, config.replace == "tails"
        ends = Ends.of(shard, book)
        target, beside = _of_relations(ends, relations), _of_relations(ends, relations, reverses)
        more: list[Ends] = []
        self.in_graph, self._by_time = in_graph, by_time
        if given is None:
            keep = self._choose(ends, target, beside, config, seed, comm, shard.graph_name)
        else:
            needed = config.decoder == "distmult" or relations is not None
            self.val, self.test = (
                given[split].owned(book, relations, needed, f"link.{split}_edges") for split in ("val", "test")
            )
            more = [self.val, self.test]
            listed = torch.cat([_pairs_of(edges) for edges in given.values()])
            keep = ~(torch.isin(ends.pairs, listed) & beside & ~ends.loops)
        learned = keep & target & ~ends.loops
        self._learned, self._beside = learned, keep & beside & ~ends.loops
        self.keep_local, self.keep_remote = keep[: shard.local.num_edges], keep[shard.local.num_edges :]
        self._count(shard, comm, learned, ends, more, book)

    def _choose(
        self, ends: Ends, target: Tensor, beside: Tensor, config: LinkConfig, seed: int, comm: Communicator, name: str
    ) -> Tensor:
        """Which edges are kept; `val` and `test` are the others."""
        if not self._by_time:
            return self._draw(ends, target, beside, config, seed)
        if ends.times is None:
            raise UserError(f"the edges of {name} have no times to be held out by: leave out link.hold_out=time")
        free = beside & ~ends.loops
        times = ends.times[target & free]
        first, last = time_borders(times, config.val, config.test, comm, f"edges of {name}")
        val, test = (ends.times > first) & (ends.times <= last) & free, (ends.times > last) & free
        self.val, self.test = ends.pick(val & target), ends.pick(test & target)
        return ~(val | test)

    def _draw(self, ends: Ends, target: Tensor, beside: Tensor, config: LinkConfig, seed: int) -> Tensor:
        """The same, drawn."""
        low = torch.minimum(ends.head_ids, ends.tail_ids)
        high = torch.maximum(ends.head_ids, ends.tail_ids)
        draw = ((splitmix64(edge_key(low, high) ^ (seed ^ _HELD_OUT)) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
        free = beside & ~ends.loops
        val, test = (draw < config.val) & free, (draw >= 1.0 - config.test) & free
        self.val, self.test = ends.pick(val & target), ends.pick(test & target)
        return ~(val | test)

    def _count(
        self, shard: Shard, comm: Communicator, learned: Tensor, ends: Ends, more: list[Ends], book: PartitionBook
    ) -> None:
        """Makes `absent`, and refuses graphs without edges to learn, or without pairs to tell them from."""
        if self.turned:
            self.val, self.test = self.val.turned(book, comm), self.test.turned(book, comm)
            all_ends = ends.turned(book, comm)
            edges = all_ends.tails.long() - book.own.start, all_ends.head_ids
            more, fixed = [self.val, self.test] if more else [], all_ends
        else:
            edges, fixed = in_edges(shard), ends
        listed = None
        if more:
            rows = torch.cat([each.tails.long() - book.own.start for each in more])
            listed = rows, torch.cat([each.head_ids for each in more])
        self.absent = NonEdges(shard, edges, listed)
        self.by_relation = [
            NonEdges(shard, edges, listed, _candidates([fixed, *more], relation, comm))
            for relation in self.relations or ()
        ]
        counts = torch.stack([learned.sum(), self._counted(ends.pick(learned), book, comm)])
        comm.all_reduce(counts, "control", "edges to train on")
        if not int(counts[0]):
            raise UserError(f"{shard.graph_name} has no edge left to train on: hold out fewer (link.val, link.test)")
        if not int(counts[1]):
            raise UserError(
                f"{shard.graph_name} has edges from every vertex to each that its edges lead to, so that there are no "
                "pairs without an edge to learn from: train.task=links needs some"
            )

    def _counted(self, learned: Ends, book: PartitionBook, comm: Communicator) -> Tensor:
        """How many edges have pairs without an edge beside them."""
        ends = learned.turned(book, comm) if self.turned else learned
        rows, kinds = ends.tails.long() - book.own.start, self.kinds(ends)
        if kinds is None:
            return (self.absent.counts[rows] > 0).sum()
        return sum(
            ((one.counts[rows[kinds == kind]] > 0).sum() for kind, one in enumerate(self.by_relation)), torch.tensor(0)
        )

    def kinds(self, ends: Ends) -> Tensor | None:
        """Which of `by_relation` each edge's other heads come from; None: all from `absent`."""
        if self.relations is None or ends.relations is None:
            return None
        return (ends.relations[:, None] == torch.tensor(self.relations)).long().argmax(1)

    def without(self, shard: Shard) -> Shard:
        """The shard with the edges that training may see; those held out by time are seen by what is later."""
        if self.in_graph:
            return shard
        return replace(
            shard,
            local=filter_csr(shard.local, self.keep_local),
            remote=filter_csr(shard.remote, self.keep_remote),
        )

    def learned(self, ends: Ends) -> tuple[Ends, Ends]:
        """Of the edges of the shard that training sees: those that are learned, and these with their reverses."""
        if self.in_graph:
            return ends.pick(self._learned), ends.pick(self._beside)
        kept = torch.cat([self.keep_local, self.keep_remote])
        return ends.pick(self._learned[kept]), ends.pick(self._beside[kept])


def _of_relations(ends: Ends, relations: Sequence[int] | None, more: Sequence[int] = ()) -> Tensor:
    """Which edges are of these relations, bool; None: all are."""
    if relations is None or ends.relations is None:
        return torch.ones(ends.count, dtype=torch.bool)
    return torch.isin(ends.relations, torch.tensor([*relations, *more]))


def _pairs_of(edges: GivenEdges) -> Tensor:
    return torch.minimum(edges.heads, edges.tails) * 2**31 + torch.maximum(edges.heads, edges.tails)


def _candidates(ends: Sequence[Ends], relation: int, comm: Communicator) -> Tensor:
    """Global ids, ascending, of the vertices that edges of a relation lead from (turned: to), over all workers."""
    mine = [each.head_ids[each.relations == relation] for each in ends if each.relations is not None]
    found = torch.unique(torch.cat(mine)) if mine else torch.empty(0, dtype=torch.int64)
    longest = torch.tensor([found.numel()])
    comm.all_reduce(longest, "control", "candidates", op="max")
    padded = torch.full((int(longest),), -1, dtype=torch.int64)
    padded[: found.numel()] = found
    everyone = comm.all_gather(padded, "control", "candidates").flatten()
    candidates: Tensor = torch.unique(everyone[everyone >= 0])
    return candidates


def step_keys(ends: Ends) -> Tensor:
    """By which the minibatch of an edge and its reverse is drawn."""
    return pair_key(ends.head_ids, ends.tail_ids)
