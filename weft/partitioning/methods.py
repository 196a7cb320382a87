"""Partition methods for a graph in memory: random, stream, community, metis.

One more, presample, cuts by what minibatches use of the graph: see weft/sample/presample.py.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.kernels.partition import rebalance, stream_partition
from weft.partitioning.metis import metis_owner
from weft.partitioning.order import community_order
from weft.partitioning.partitioners import Assignment, Balance, Request, Requires, register_partitioner
from weft.partitioning.quality import train_count


def random_owner(graph: Graph, parts: int, seed: int, balance: Balance) -> Tensor:
    """Dealt like cards: of every P vertices alike (in training or not, similar degree), one to each part."""
    random = np.random.default_rng(seed)
    num_nodes = graph.num_nodes
    alike = np.lexsort((random.random(num_nodes), graph.adjacency.degrees().numpy(), train_count(graph).numpy()))
    deal = np.argsort(np.arange(num_nodes) // parts + random.random(num_nodes))  # shuffles within every P
    owner = np.empty(num_nodes, np.int32)
    owner[alike[deal]] = np.arange(num_nodes) % parts
    return torch.from_numpy(random.permutation(parts).astype(np.int32)[owner])


def stream_owner(graph: Graph, parts: int, seed: int, balance: Balance) -> Tensor:
    """One pass in a seeded order: each vertex to the part that has most of its neighbours so far, less a price
    for size (Fennel), where there is room."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    nowhere = np.full(graph.num_nodes, -1, np.int32)
    return _stream(graph, parts, order, nowhere, balance)


def community_owner(graph: Graph, parts: int, seed: int, balance: Balance) -> Tensor:
    """The locality order cut into P runs, then one pass that moves each vertex to where its neighbours are."""
    num_nodes = graph.num_nodes
    order = np.roll(community_order(graph.adjacency).numpy(), seed * 7919 % max(1, num_nodes))
    owner = np.empty(num_nodes, np.int32)
    owner[order] = np.arange(num_nodes) * parts // max(1, num_nodes)
    return _stream(graph, parts, order, owner, balance)


def _stream(graph: Graph, parts: int, order: Array, owner: Array, balance: Balance) -> Tensor:
    indptr, indices = graph.adjacency.indptr, graph.adjacency.indices
    load, limit = map(torch.from_numpy, loads(graph, parts, balance))
    start = torch.from_numpy(order), torch.from_numpy(owner)
    streamed = stream_partition(indptr, indices, *start, parts, load, limit, 1)
    return rebalance(indptr, indices, streamed, parts, load, limit)


def balanced_metis_owner(graph: Graph, parts: int, seed: int, balance: Balance) -> Tensor:
    """METIS on one combined weight (pymetis takes no more), then vertices move until parts are even."""
    if graph.num_nodes <= parts or graph.num_edges == 0:
        return random_owner(graph, parts, seed, balance)
    load, limit = loads(graph, parts, balance)
    owner = metis_owner(graph.adjacency, parts, seed, load)
    indptr, indices = graph.adjacency.indptr, graph.adjacency.indices
    return rebalance(indptr, indices, owner, parts, torch.from_numpy(load), torch.from_numpy(limit))


def loads(graph: Graph, parts: int, balance: Balance, work: Tensor | None = None) -> tuple[Array, Array]:
    """What each vertex weighs, float64 [N, 3] (itself, work, training), and what a part may hold [3].

    work: float64 [N]; None: in-edges.
    """
    work = graph.adjacency.degrees().double() if work is None else work
    load = torch.stack([torch.ones_like(work), work, train_count(graph)], dim=1).numpy()
    return load, limits(load.sum(0).tolist(), parts, balance)


def limits(totals: Sequence[float], parts: int, balance: Balance) -> Array:
    """What a part may hold of each kind of load, float64 [3], of which there is so much in all."""
    allowed = (balance.nodes, balance.edges, balance.train)
    if min(allowed) < 1:
        raise UserError(f"a balance of {min(allowed)} cannot be met: the largest part is at least the mean (1.0)")
    limit = [
        max(slack * weight / parts, math.ceil(weight / parts)) for slack, weight in zip(allowed, totals, strict=True)
    ]
    return np.array(limit, np.float64)


OwnerOf = Callable[[Graph, int, int, Balance], Tensor]  # graph, parts, seed, balance


def _register(name: str, owner_of: OwnerOf, about: str, requires: Requires, preference: int = 0) -> None:
    def run(graph: Graph, request: Request) -> Assignment:
        return Assignment(owner_of(graph, request.parts, request.seed, request.balance))

    register_partitioner(name, run, about, requires, preference)


_register("metis", balanced_metis_owner, "fewest cut edges", Requires(package="pymetis"), preference=3)
_register("community", community_owner, "a native cut of the locality order", Requires(native=True), preference=2)
_register("stream", stream_owner, "one native pass", Requires(native=True))
_register("random", random_owner, "even, blind to edges", Requires(), preference=1)
