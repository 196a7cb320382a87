"""Minibatches drawn before a graph is cut, and what they use of it counted, so that it is cut where they use little."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.csr import CSR
from weft.graph.graph import Graph
from weft.graph.progress import progress
from weft.graph.splits import known
from weft.kernels.sampling import Method
from weft.partitioning import (
    Assignment,
    Balance,
    Forecast,
    Request,
    Requires,
    Touches,
    presample_owner,
    register_partitioner,
    traffic,
    whole_shard,
)
from weft.sample.book import PartitionBook
from weft.sample.config import FANOUTS
from weft.sample.sampler import Drawing, Sampler
from weft.sample.source import VertexSource


@dataclass(frozen=True)
class Presample:
    """Which minibatches are counted: those that training draws in its first epochs with the same settings and seed."""

    epochs: int = 3
    batch: int = 1024
    fanouts: tuple[int, ...] = FANOUTS
    method: Method = "neighbour"
    split: int | None = None  # None: training vertices are those of any split

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise UserError(f"{self.epochs} epochs of minibatches of {self.batch} cannot be drawn: give 1 or more")
        if not self.fanouts or any(fanout < -1 or fanout == 0 for fanout in self.fanouts):
            raise UserError("a fan-out says how many neighbours are drawn at each hop: 1 or more, or -1 for all")


class Counting:
    """Draws a graph's minibatches in this process and counts what they use."""

    def __init__(self, graph: Graph, config: Presample, seed: int) -> None:
        shard = whole_shard(_bare(graph, config), reorder=False)
        comm = Communicator.alone()
        book = PartitionBook(shard, comm)
        drawing = Drawing(tuple(config.fanouts), config.method, seed)
        rows = training_rows(graph, config.split)
        self.source = VertexSource(rows, shard.global_ids, config.batch, seed, comm, 0)
        self.sampler = Sampler(self.source, shard, book, comm, drawing, edge_ids=True)

    def touches(self, epochs: Iterable[int]) -> Touches:
        """What the minibatches of some epochs use."""
        epochs, csr = list(epochs), self.sampler.neighbours.csr
        edges = torch.zeros(csr.num_edges, dtype=torch.int32)
        computed, loaded = torch.zeros(2, csr.num_rows, dtype=torch.int32)
        with progress("drawing minibatches", len(epochs) * self.source.steps) as advance:
            for epoch in epochs:
                for step in range(self.source.steps):
                    (batch,) = self.sampler.draw(epoch, [step])
                    for hop in batch.hops:
                        assert hop.edge_ids is not None
                        _count(edges, hop.edge_ids)
                        _count(computed, batch.nodes[: hop.csr.num_rows])
                    _count(loaded, batch.nodes)
                    advance(1)
        return Touches(csr, edges, computed, loaded)


def presampled(
    graph: Graph, parts: int, seed: int = 0, config: Presample | None = None, balance: Balance | None = None
) -> tuple[Tensor, Forecast]:
    """The part of every vertex, int32 [N], and how well it serves minibatches, counted before and after."""
    if parts < 1:
        raise UserError(f"{parts} parts were asked for: a graph is cut into 1 part or more")
    config = config or Presample()
    counting = Counting(graph, config, seed)
    expected = counting.touches(range(1, config.epochs + 1))
    owner = presample_owner(graph, expected, parts, seed, balance)
    forecast = Forecast(
        config.epochs,
        config.batch,
        config.fanouts,
        traffic(expected, owner, parts),
        traffic(counting.touches([config.epochs + 1]), owner, parts),
    )
    return owner, forecast


def _assign(graph: Graph, request: Request) -> Assignment:
    return Assignment(*presampled(graph, request.parts, request.seed, request.minibatches, request.balance))


register_partitioner(
    "presample",
    _assign,
    "METIS by what minibatches use",
    Requires(package="pymetis", training_vertices=True, minibatches=True),
)


def training_rows(graph: Graph, split: int | None = None) -> Tensor:
    """The vertices that minibatches begin with, int64; `split` None: those of all splits."""
    mask = graph.train_mask
    if mask is not None and mask.dim() == 2:
        mask = mask.any(0) if split is None else mask[split]
    if mask is not None and graph.y is not None:
        mask = mask & known(graph.y)
    if mask is None or not bool(mask.any()):
        raise UserError(
            f"{graph.name} has no training vertices with a known label, and method 'presample' draws the minibatches "
            "around them: give it a split (weft ingest --split), or use method 'metis'"
        )
    return mask.nonzero().squeeze(1)


def _bare(graph: Graph, config: Presample) -> Graph:
    """The graph with nothing but what is drawn from."""
    adjacency = graph.adjacency
    weight = adjacency.weight if config.method == "weighted" else None
    if config.method == "weighted" and weight is None:
        raise UserError(f"sample.method=weighted draws by edge weight, but {graph.name} has no weights")
    return Graph(CSR(adjacency.indptr, adjacency.indices, adjacency.num_cols, weight), name=graph.name)


def _count(counts: Tensor, at: Tensor) -> None:
    """One more at each of these places, all of which differ."""
    counts.index_add_(0, at, torch.ones(at.numel(), dtype=counts.dtype))
