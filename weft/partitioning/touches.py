"""What minibatches use of a graph, counted, and what they then ask of a partition."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weft.graph.csr import CSR, row_numbers, row_sums
from weft.partitioning.quality import balance as largest_over_mean


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
        return row_sums(replace(self.adjacency, weight=self.edges))

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
        share = self.aggregated / row_sums(replace(self.adjacency, weight=weight)).clamp(min=1e-300)
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
