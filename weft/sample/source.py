"""Sources of minibatches: which seeds each step has. Their order is a function of (seed, epoch), not a state.

A minibatch is one of the whole run: its seeds are dealt out to the workers that own them. So the minibatches, and what
is trained, do not depend on how many workers there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.kernels.hash import hash_key, splitmix64
from weft.sample.book import PartitionBook
from weft.sample.moments import Moments, join
from weft.sample.negatives import NonEdges

_ROUNDS = 4
T = TypeVar("T")
_SEEDS = 0x7365656473  # tells these draws from others


def permuted(index: Tensor, count: int, key: int) -> Tensor:
    """Where a keyed permutation of 0..count-1 takes these numbers (a Feistel network, walked until it is inside)."""
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    out, outside = index.clone(), torch.ones_like(index, dtype=torch.bool)
    while bool(outside.any()):
        value = out[outside]
        left, right = value >> half, value & low
        for turn in range(_ROUNDS):
            left, right = right, left ^ (splitmix64(right ^ hash_key(key, turn)) & low)
        out[outside] = left << half | right
        outside = out >= count
    return out


class Recent(Generic[T]):
    """What was made for two epochs: this one, and the next, which another thread prepares."""

    def __init__(self) -> None:
        self._made: dict[int, T] = {}
        self._lock = Lock()

    def get(self, epoch: int, make: Callable[[], T]) -> T:
        with self._lock:
            if epoch not in self._made:
                self._made = {kept: value for kept, value in self._made.items() if abs(kept - epoch) == 1}
                self._made[epoch] = make()
            return self._made[epoch]


class Source(Protocol):
    """Which seeds each step of an epoch has."""

    steps: int  # in an epoch, the same for every worker

    def seeds(self, epoch: int, step: int) -> Tensor:
        """This worker's seeds of a minibatch: positions in the partition book, each once, int32."""
        ...

    def moments(self, epoch: int, step: int) -> Moments:
        """The same with their times, of a source that has times: positions, each moment once."""
        ...


class VertexSource:
    """Vertices as seeds: every step has `batch` of those of all workers, each on the worker that owns it."""

    def __init__(
        self,
        rows: Tensor,
        global_ids: Tensor,
        batch: int,
        seed: int,
        comm: Communicator,
        start: int,
        times: Tensor | None = None,
    ) -> None:
        """`rows` are the seeds among this worker's rows, whose positions are those from `start` on.

        `times`: of all of this worker's rows, float64 [N], where minibatches have moments.
        """
        self._times = times
        self.rows, self.batch, self._seed, self._start = rows, batch, seed, start
        self._epochs: Recent[list[Tensor]] = Recent()
        ids = global_ids[rows]
        sizes = comm.all_gather(torch.tensor([rows.numel()]), "control", "seeds of every worker").flatten().tolist()
        padded = torch.full((max(sizes),), -1, dtype=torch.int64)
        padded[: ids.numel()] = ids
        everyone = comm.all_gather(padded, "control", "seeds").flatten()
        everyone = everyone[everyone >= 0].sort().values
        self._index = torch.searchsorted(everyone, ids)
        self.count = everyone.numel()
        self.steps = -(-self.count // batch)

    def seeds(self, epoch: int, step: int) -> Tensor:
        return (self.epoch(epoch)[step] + self._start).int()

    def moments(self, epoch: int, step: int) -> Moments:
        rows = self.epoch(epoch)[step]
        assert self._times is not None, "these seeds have no times"
        return Moments((rows + self._start).int(), self._times[rows])

    def epoch(self, epoch: int) -> list[Tensor]:
        """Own rows that are each minibatch's seeds, in its order, int64."""
        return self._epochs.get(epoch, lambda: self._dealt(epoch))

    def _dealt(self, epoch: int) -> list[Tensor]:
        place = permuted(self._index, self.count, hash_key(self._seed, epoch, _SEEDS))
        place, order = place.sort()
        ends = torch.searchsorted(place, torch.arange(1, self.steps + 1) * self.batch)
        return list(torch.tensor_split(self.rows[order], ends[:-1]))


@dataclass(frozen=True)
class Pairs:
    """Pairs of vertices of a minibatch: edges first, then pairs that are none."""

    heads: Tensor  # positions, int32 [P]
    tails: Tensor
    exist: Tensor  # float32 [P], 1: an edge
    relations: Tensor | None  # int64 [P], of the edge, or of the edge that a pair stands beside
    times: Tensor | None = None  # float64 [P], likewise

    @property
    def moments(self) -> tuple[Moments, Moments]:
        """Heads and tails, each at the time of its pair."""
        assert self.times is not None, "these pairs have no times"
        return Moments(self.heads, self.times), Moments(self.tails, self.times)


class LinkSource:
    """The edges of this worker's vertices as seeds: both ends of each, and pairs that are no edges.

    Such a pair has an edge's tail, and a head drawn evenly from the vertices without an edge to it; a tail that all
    others have an edge to has none. Heads and the minibatch of an edge are drawn by a hash of its ends: minibatches are
    about equally large, and do not depend on the partition.
    """

    def __init__(
        self, heads: Tensor, tails: Tensor, head_ids: Tensor, tail_ids: Tensor, book: PartitionBook,
        absent: NonEdges | Sequence[NonEdges], batch: int, negatives: int, seed: int, comm: Communicator,
        relations: Tensor | None = None, kinds: Tensor | None = None, both_ways: bool = False, pooled: bool = False,
        times: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`tails` are own vertices, `heads` any; both given as positions (int32) and as global ids.

        `kinds`: which of several `absent` other heads of an edge are drawn from. `both_ways`: an edge and its reverse
        are in the same minibatch. `pooled`: other heads are those of the minibatch's other edges, of all workers; then
        `seeds` is a collective call, on connections (`comm`) that nobody else uses meanwhile. `times`: of
        edges, float64, where minibatches have moments.
        """
        self._heads, self._tails, self._book, self._negatives, self._seed = heads, tails, book, negatives, seed
        self._absent = [absent] if isinstance(absent, NonEdges) else list(absent)
        self._kinds = torch.zeros(heads.numel(), dtype=torch.int64) if kinds is None else kinds
        self._rows, self._head_ids, self._relations = tails.long() - book.own.start, head_ids, relations
        self._comm, self._pooled, self._times = comm, pooled, times
        self._free = torch.zeros(heads.numel(), dtype=torch.int64)  # how many other heads each edge may have
        for kind, one in enumerate(self._absent):
            mine = self._kinds == kind
            self._free[mine] = one.counts[self._rows[mine]]
        self._drawn = self._free > 0  # edges beside which other heads are drawn
        self._key = edge_key(head_ids, tail_ids)
        self._step_key = pair_key(head_ids, tail_ids) if both_ways else self._key
        self._epochs: Recent[tuple[Tensor, Tensor]] = Recent()
        self._pools: dict[tuple[int, int], Pairs] = {}
        self._sent_before: dict[str, int] = {}
        count = comm.all_reduce(torch.tensor([heads.numel()]), "control", "edges to train on")
        self.count = int(count)
        self.steps = max(1, -(-self.count // batch))
        book.positions(torch.empty(0, dtype=torch.int64))  # all workers together

    def _dealt(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Edges in the order of their minibatches, and where each begins."""
        step, order = step_of(self._step_key, self._seed, epoch, self.steps).sort(stable=True)
        return order, torch.searchsorted(step, torch.arange(self.steps + 1))

    def _edges(self, epoch: int, step: int) -> Tensor:
        order, ends = self._epochs.get(epoch, lambda: self._dealt(epoch))
        return order[int(ends[step]) : int(ends[step + 1])]

    def pairs(self, epoch: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Heads and tails as positions, edges first; and which are edges, float32."""
        drawn = self.draw(epoch, step)
        return drawn.heads, drawn.tails, drawn.exist

    def draw(self, epoch: int, step: int) -> Pairs:
        """The pairs of a minibatch; of pooled ones those that `seeds` has drawn, once."""
        if self._pooled:
            return self._pools.pop((epoch, step))
        return self._drawn_pairs(epoch, step, None)

    def _drawn_pairs(self, epoch: int, step: int, pool: "_Pool | None") -> Pairs:
        edges = self._edges(epoch, step)
        heads, tails = [self._heads[edges]], [self._tails[edges]]
        beside = edges[self._drawn[edges]]
        for turn in range(self._negatives):
            ids = self._other_heads(beside, hash_key(self._seed, epoch, _SEEDS, turn + 1))
            if pool is not None:
                offered = pool.others(self._key[beside], hash_key(self._seed, epoch, step, turn + 1, _SEEDS))
                ids = torch.where(self._may_be(beside, offered), offered, ids)
            heads.append(self._book.positions(ids))
            tails.append(self._tails[beside])
        labels = torch.zeros(edges.numel() + beside.numel() * self._negatives)
        labels[: edges.numel()] = 1.0
        relations, times = (
            None if of_edges is None else torch.cat([of_edges[edges], of_edges[beside].repeat(self._negatives)])
            for of_edges in (self._relations, self._times)
        )
        return Pairs(torch.cat(heads), torch.cat(tails), labels, relations, times)

    def _other_heads(self, edges: Tensor, key: int) -> Tensor:
        """A vertex for each edge, drawn evenly from those without an edge to its tail, by global id."""
        numbers = _below(splitmix64(self._key[edges] ^ key), self._free[edges])
        if len(self._absent) == 1:
            return self._absent[0].find(self._rows[edges], numbers)
        found = torch.empty_like(numbers)
        for kind, one in enumerate(self._absent):
            mine = self._kinds[edges] == kind
            found[mine] = one.find(self._rows[edges[mine]], numbers[mine])
        return found

    def _may_be(self, edges: Tensor, ids: Tensor) -> Tensor:
        """Whether these vertices may stand in the place of the edges' heads, bool."""
        found = torch.zeros(edges.numel(), dtype=torch.bool)
        for kind, one in enumerate(self._absent):
            mine = self._kinds[edges] == kind
            found[mine] = one.have(self._rows[edges[mine]], ids[mine])
        return found

    def ranked(self, step: int) -> "Ranked":
        """The edges of a minibatch beside which other heads are drawn, each with all of its own."""
        drawn, edges = self._drawn_pairs(0, step, None), self._edges(0, step)
        kept, count = self._drawn[edges], edges.numel()
        others = drawn.heads[count:].view(self._negatives, -1).T
        relations = None if drawn.relations is None else drawn.relations[:count][kept]
        times = None if drawn.times is None else drawn.times[:count][kept]
        return Ranked(drawn.heads[:count][kept], drawn.tails[:count][kept], others, relations, times)

    def sent(self) -> dict[str, int]:
        """Bytes by class, since the last call, of connections that it has for itself."""
        if not self._pooled or self._comm.num_workers == 1:
            return {}
        sent = {kind: count - self._sent_before.get(kind, 0) for kind, count in self._comm.sent.items()}
        self._sent_before = dict(self._comm.sent)
        return sent

    def sizes(self, epoch: int) -> Tensor:
        """How many pairs each minibatch has here, int64 [steps]."""
        order, ends = self._epochs.get(epoch, lambda: self._dealt(epoch))
        pairs = torch.zeros(order.numel() + 1, dtype=torch.int64)
        torch.cumsum(1 + self._negatives * self._drawn[order], 0, out=pairs[1:])
        return pairs[ends].diff()

    def seeds(self, epoch: int, step: int) -> Tensor:
        drawn = self._drawn_for(epoch, step)
        both: Tensor = torch.unique(torch.cat([drawn.heads, drawn.tails]))
        return both

    def moments(self, epoch: int, step: int) -> Moments:
        return join(self._drawn_for(epoch, step).moments).distinct()

    def _drawn_for(self, epoch: int, step: int) -> Pairs:
        """The pairs of a minibatch; of pooled ones they are kept until they are asked for."""
        pool = None
        if self._pooled:
            edges = self._edges(epoch, step)
            pool = _Pool.gather(self._key[edges], self._head_ids[edges], self._comm)
        drawn = self._drawn_pairs(epoch, step, pool)
        if self._pooled:
            self._pools[epoch, step] = drawn
        return drawn


@dataclass(frozen=True)
class Ranked:
    """Edges, each among pairs that are none: positions."""

    heads: Tensor  # int32 [P]
    tails: Tensor  # int32 [P]
    others: Tensor  # int32 [P, K], heads of pairs with the same tail
    relations: Tensor | None  # int64 [P]
    times: Tensor | None = None  # float64 [P]


@dataclass(frozen=True)
class _Pool:
    """The heads of a minibatch's edges, of all workers, in the order of the edges' keys."""

    keys: Tensor  # int64, ascending
    ids: Tensor

    @staticmethod
    def gather(keys: Tensor, ids: Tensor, comm: Communicator) -> "_Pool":
        longest = torch.tensor([keys.numel()])
        comm.all_reduce(longest, "control", "edges of a minibatch", op="max")
        mine = torch.full((int(longest), 2), -1, dtype=torch.int64)
        mine[: keys.numel()] = torch.stack([keys, ids], 1)
        everyone = comm.all_gather(mine, "ids", "heads of a minibatch").flatten(0, 1)
        everyone = everyone[everyone[:, 1] >= 0]
        order = torch.argsort(everyone[:, 0], stable=True)
        return _Pool(everyone[order, 0], everyone[order, 1])

    def others(self, keys: Tensor, draw: int) -> Tensor:
        """The head that stands so many places after each of these edges, round the end, as a draw says."""
        count = self.keys.numel()
        shift = 1 + draw % (count - 1) if count > 1 else 0
        return self.ids[(torch.searchsorted(self.keys, keys) + shift) % max(count, 1)]


def edge_key(head_ids: Tensor, tail_ids: Tensor) -> Tensor:
    """64 bits of each edge, by its ends."""
    return splitmix64(splitmix64(head_ids) + tail_ids)


def pair_key(head_ids: Tensor, tail_ids: Tensor) -> Tensor:
    """64 bits of each edge, the same of its reverse."""
    return edge_key(torch.minimum(head_ids, tail_ids), torch.maximum(head_ids, tail_ids))


def step_of(keys: Tensor, seed: int, epoch: int, steps: int) -> Tensor:
    """The minibatch of an epoch in which edges of these keys are learned, int64."""
    return _below(splitmix64(keys ^ hash_key(seed, epoch, _SEEDS)), steps)


def _below(draws: Tensor, bound: int | Tensor) -> Tensor:
    """Numbers from 0 to bound - 1, which is less than 2^31, out of 64 random bits each: draws * bound / 2^64."""
    high, low = (draws >> 32) & 0xFFFFFFFF, draws & 0xFFFFFFFF
    return (high * bound + (low * bound >> 32)) >> 32
