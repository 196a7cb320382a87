"""Which vertices are the seeds of which minibatch: a permutation that is a function of (seed, epoch), not a state.

A minibatch is one of the whole run: its seeds are dealt out to the workers that own them. So the minibatches, and what
is trained, do not depend on how many workers there are.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from weft.aggregate.noise import hash_key
from weft.comm import Communicator
from weft.kernels.reference import splitmix64
from weft.sample.edges import Standing

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


class _Recent(Generic[T]):
    """What was made for the last two epochs: this one, and that which is planned ahead, by another thread."""

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
    """Where minibatches come from."""

    steps: int  # in an epoch, for every worker

    def nodes(self, epoch: int, step: int) -> Tensor:
        """This worker's seeds of a minibatch: where they stand, each once, int32."""
        ...


class Seeds:
    """The training vertices of this worker, and their place among those of all workers."""

    def __init__(self, rows: Tensor, global_ids: Tensor, batch: int, seed: int, comm: Communicator, start: int) -> None:
        self.rows, self.batch, self._seed, self._start = rows, batch, seed, start
        self._epochs: _Recent[list[Tensor]] = _Recent()
        ids = global_ids[rows]
        sizes = comm.all_gather(torch.tensor([rows.numel()]), "control", "seeds of every worker").flatten().tolist()
        padded = torch.full((max(sizes),), -1, dtype=torch.int64)
        padded[: ids.numel()] = ids
        everyone = comm.all_gather(padded, "control", "seeds").flatten()
        everyone = everyone[everyone >= 0].sort().values
        self._index = torch.searchsorted(everyone, ids)
        self.count = everyone.numel()
        self.steps = -(-self.count // batch)

    def nodes(self, epoch: int, step: int) -> Tensor:
        return (self.epoch(epoch)[step] + self._start).int()

    def epoch(self, epoch: int) -> list[Tensor]:
        """Own rows of each minibatch, in the order in which they stand in it, int64."""
        return self._epochs.get(epoch, lambda: self._dealt(epoch))

    def _dealt(self, epoch: int) -> list[Tensor]:
        place = permuted(self._index, self.count, hash_key(self._seed, epoch, _SEEDS))
        place, order = place.sort()
        ends = torch.searchsorted(place, torch.arange(1, self.steps + 1) * self.batch)
        return list(torch.tensor_split(self.rows[order], ends[:-1]))


class Links:
    """The edges of this worker's vertices as seeds: both ends of each, and of other ends that it might have had.

    An edge falls into a minibatch by a hash of its ends, and so do the ends that it might have had: minibatches are
    about equally large, and nothing about them depends on where anything is.
    """

    def __init__(
        self, heads: Tensor, tails: Tensor, head_ids: Tensor, tail_ids: Tensor, standing: Standing, batch: int,
        negatives: int, seed: int, comm: Communicator,
    ) -> None:  # fmt: skip
        """`tails` are own vertices, `heads` any; both by where they stand (int32), and by global id."""
        self._heads, self._tails, self._standing, self._negatives, self._seed = heads, tails, standing, negatives, seed
        self._key = edge_key(head_ids, tail_ids)
        self._epochs: _Recent[tuple[Tensor, Tensor]] = _Recent()
        count = comm.all_reduce(torch.tensor([heads.numel()]), "control", "edges to train on")
        self.count = int(count)
        self.steps = max(1, -(-self.count // batch))
        standing.of_ids(torch.empty(0, dtype=torch.int64))  # all workers together

    def _dealt(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Edges in the order of their minibatches, and where each begins."""
        step = _below(splitmix64(self._key ^ hash_key(self._seed, epoch, _SEEDS)), self.steps)
        step, order = step.sort(stable=True)
        return order, torch.searchsorted(step, torch.arange(self.steps + 1))

    def pairs(self, epoch: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Heads and tails, by where they stand, edges first; and which are edges, float32."""
        order, ends = self._epochs.get(epoch, lambda: self._dealt(epoch))
        edges = order[int(ends[step]) : int(ends[step + 1])]
        heads, tails = [self._heads[edges]], [self._tails[edges]]
        for turn in range(self._negatives):
            draws = splitmix64(self._key[edges] ^ hash_key(self._seed, epoch, _SEEDS, turn + 1))
            heads.append(self._standing.of_ids(_below(draws, self._standing.num_nodes)))
            tails.append(tails[0])
        labels = torch.zeros(edges.numel() * (self._negatives + 1))
        labels[: edges.numel()] = 1.0
        return torch.cat(heads), torch.cat(tails), labels

    def sizes(self, epoch: int) -> Tensor:
        """How many pairs each minibatch has here, int64 [steps]."""
        _, ends = self._epochs.get(epoch, lambda: self._dealt(epoch))
        return ends.diff() * (self._negatives + 1)

    def nodes(self, epoch: int, step: int) -> Tensor:
        heads, tails, _ = self.pairs(epoch, step)
        nodes: Tensor = torch.unique(torch.cat([heads, tails]))
        return nodes


def edge_key(head_ids: Tensor, tail_ids: Tensor) -> Tensor:
    """64 bits of each edge, by its ends."""
    return splitmix64(splitmix64(head_ids) + tail_ids)


def _below(draws: Tensor, bound: int) -> Tensor:
    """Numbers from 0 to bound - 1 out of 64 random bits each."""
    return ((draws >> 33) & 0x7FFFFFFF) * bound >> 31
