"""One minibatch, ready to be trained on, and how the graph is prepared for a pass over it."""

from dataclasses import dataclass

from weft.aggregate import DistributedGraph
from weft.aggregate.cached_level import CachedLevel
from weft.aggregate.topology import Topology
from weft.sample.batch import Batch
from weft.sample.fetcher import Fetcher, Inputs
from weft.sample.level import SampledLevel
from weft.sample.store import BatchRows


@dataclass(frozen=True)
class Minibatch:
    """A minibatch whose rows are here."""

    epoch: int
    batch: Batch
    rows: BatchRows
    fetcher: Fetcher

    @property
    def step(self) -> int:
        """Its place in the epoch, from 0 on."""
        return self.batch.step

    def inputs(self) -> Inputs:
        return self.fetcher.inputs(self.batch, self.rows)


def enter(graph: DistributedGraph, batch: Batch, inputs: Inputs) -> None:
    """Prepares the graph for a training pass over a minibatch, with a level for each layer."""
    base, first, hops = graph.topology, batch.first_shared, batch.hops
    levels: list[Topology] = [
        SampledLevel(base, hop, inputs.ids, inputs.scale, batch.counted) for hop in reversed(hops[first:])
    ]
    if inputs.aggregates is not None:
        levels.insert(0, CachedLevel(base, inputs.ids, batch.counted))
    boundaries: dict[int, Topology] = {}
    if batch.boundary is not None:
        boundary = batch.boundary
        boundaries[len(levels)] = SampledLevel(base, boundary.hop, inputs.ids, None)
        levels += [
            SampledLevel(base, hop, boundary.ids, boundary.scale, boundary.counted) for hop in reversed(hops[:first])
        ]
    graph.sample(levels, inputs.x, inputs.aggregates, boundaries)
