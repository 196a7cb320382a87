"""Cut by what minibatches use: METIS on the edges that they draw, each weighed by how often (GSplit).

Who draws and counts is weft/sample/presample.py; here counts become an assignment, and an assignment is judged by them.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from weft.graph.files import Array
from weft.graph.graph import CSR, Graph
from weft.kernels.native import native_for
from weft.partition.methods import Balance, balanced_metis_owner, loads
from weft.partition.metis import metis_owner
from weft.partition.quality import balance as largest_over_mean
from weft.partition.shard import filter_csr, row_numbers

TRIES = 4  # cuts of METIS, of which the best is taken: one alone differs from seed to seed by more than weights gain
MEAN_WEIGHT = 100  # of the edges that may be drawn
MOST_WEIGHT = 2**30  # of all edges together, both directions: METIS sums in 32 bits


@dataclass(frozen=True)
class Touches:
    """How often minibatches used every edge and every vertex of a graph."""

    adjacency: CSR  # of the whole graph, with weights where edges are drawn by them
    edges: Tensor  # int32 [E], how often each was drawn
    computed: Tensor  # int32 [N], in how many layers of how many minibatches each vertex's row was computed
    loaded: Tensor  # int32 [N], how many minibatches read each vertex's input row

    @cached_property
    def aggregated(self) -> Tensor:
        """How many edges were drawn into each vertex, float64 [N]."""
        return _row_sums(self.adjacency, self.edges)

    @cached_property
    def load(self) -> Tensor:
        """What each vertex costs: rows computed, edges aggregated into them, input rows read; float64 [N]."""
        return self.computed + self.loaded + self.aggregated

    def expected(self) -> Tensor:
        """How often each edge is to be expected in as many other minibatches, float64 [E].

        What was drawn into a vertex is shared out among its in-edges by their chances: counts of single edges are
        mostly chance, and parts that were fitted to them would not serve the next epoch.
        """
        weight = self.adjacency.weight
        weight = torch.ones(self.adjacency.num_edges, dtype=torch.float64) if weight is None else weight.double()
        share = self.aggregated / _row_sums(self.adjacency, weight).clamp(min=1e-300)
        return weight.mul_(share.repeat_interleave(self.adjacency.degrees()))


@dataclass(frozen=True)
class Traffic:
    """What minibatches ask of a partition."""

    edges: int  # that were drawn, each as often as it was
    cut_edges: int  # those between two parts
    loads: tuple[int, ...]  # of each part: rows computed, edges aggregated into them, input rows read

    @property
    def cut_fraction(self) -> float:
        return self.cut_edges / max(1, self.edges)

    @property
    def balance(self) -> float:
        return largest_over_mean(list(self.loads))


@dataclass(frozen=True)
class Forecast:
    """What the minibatches that were counted promise of a partition, and what those of a later epoch made of it."""

    epochs: int  # that were counted: 1 to this one
    batch: int
    fanouts: tuple[int, ...]
    expected: Traffic
    realised: Traffic  # in the epoch after

    def rows(self) -> list[tuple[str, str]]:
        """(what, value) lines for a table."""
        fanouts = ", ".join("all" if fanout < 0 else str(fanout) for fanout in self.fanouts)
        later = f"in epoch {self.epochs + 1}"
        expected, realised = self.expected, self.realised
        return [
            ("minibatches counted", f"those of {self.epochs} epoch(s), batch {self.batch:,}, fan-out {fanouts}"),
            ("sampled edges cut", f"{expected.cut_fraction:.1%} expected, {realised.cut_fraction:.1%} {later}"),
            ("minibatch load balance", f"{expected.balance:.3f} expected, {realised.balance:.3f} {later}"),
        ]


def traffic(touches: Touches, owner: Tensor, parts: int) -> Traffic:
    """What minibatches that were counted ask of an assignment (owner: int [N])."""
    adjacency = touches.adjacency
    crosses = owner[adjacency.indices.long()] != owner[row_numbers(adjacency.indptr)]
    held = torch.bincount(owner.long(), weights=touches.load, minlength=parts)
    return Traffic(int(touches.edges.sum()), int(touches.edges[crosses].sum()), tuple(held.long().tolist()))


def presample_owner(
    graph: Graph, touches: Touches, parts: int, seed: int = 0, balance: Balance | None = None
) -> Tensor:
    """The part of every vertex, int32 [N]: few drawn edges cut, even loads; the same for the same arguments.

    METIS sees the edges that may be drawn, and their ends. The other vertices join their neighbours where there is
    room.
    """
    balance = balance or Balance()
    if parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int32)
    weight = edge_weight(touches)
    used = filter_csr(replace(touches.adjacency, weight=None), torch.from_numpy(weight > 0))
    weight = weight[weight > 0]
    chosen = touches.loaded > 0
    chosen[used.indices.long()] = True
    if int(chosen.sum()) <= parts or used.num_edges == 0:
        return balanced_metis_owner(graph, parts, seed, balance)
    load, limit = loads(graph, parts, balance, touches.load)
    owner = np.full(graph.num_nodes, -1, np.int32)
    seen = chosen.numpy()
    owner[seen] = metis_owner(_among(used, chosen), parts, seed, load[seen], weight, TRIES).numpy()
    native = native_for(used.indptr)
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(owner < 0))
    if native is None:
        owner[rest] = np.arange(rest.size) % parts
        return torch.from_numpy(owner)
    if rest.size:
        whole = graph.adjacency.indptr.numpy(), graph.adjacency.indices.numpy()
        owner = native.stream_partition(*whole, rest, owner, parts, load, limit, 2)
    indptr, indices = used.indptr.numpy(), used.indices.numpy()
    return torch.from_numpy(native.rebalance(indptr, indices, owner, parts, load, limit, weight))


def edge_weight(touches: Touches) -> Array:
    """What it costs to cut each edge, int32 [E]: as often as it is to be expected; 0 for those that hardly ever are.

    An edge that was drawn weighs 1 at least.
    """
    expected = touches.expected().numpy()
    total = max(1.0, float(expected.sum()))
    scale = min(MEAN_WEIGHT * np.count_nonzero(expected) / total, MOST_WEIGHT / (2 * total))
    weight: Array = np.maximum(np.rint(expected * scale), touches.edges.numpy() > 0).astype(np.int32)
    return weight


def _row_sums(csr: CSR, values: Tensor) -> Tensor:
    """The sum of each row's values, float64 [N]."""
    sums = torch.zeros(csr.num_rows, dtype=torch.float64)
    return sums.index_add_(0, row_numbers(csr.indptr), values.double())


def _among(csr: CSR, chosen: Tensor) -> CSR:
    """The same edges with only the chosen vertices (bool [N]), which are all that have any, numbered anew."""
    number = torch.cumsum(chosen, 0, dtype=torch.int32) - 1
    indptr = torch.cat([csr.indptr[:1], csr.indptr[1:][chosen]])
    return replace(csr, indptr=indptr, indices=number[csr.indices.long()].int(), num_cols=int(chosen.sum()))
