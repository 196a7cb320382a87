"""Who owns which vertex: random, stream (one native pass), community (a native cut of the locality order), metis.

One more, presample, cuts by what minibatches use of the graph: see presample.py.
"""

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.kernels.native import native_available, native_for
from weft.partition.metis import metis_owner
from weft.partition.order import community_order
from weft.partition.quality import train_count

AUTO = "auto"
PRESAMPLE = "presample"  # no entry of METHODS, since minibatches are drawn by what is built upon partitions


@dataclass(frozen=True)
class Balance:
    """How much larger than the mean the largest part may be, in vertices, in-edges, training vertices.

    Kept to by `metis` and `stream` as far as single vertices allow (one vertex can have more edges than fit), and by
    `presample`, for which `edges` bounds the work that minibatches cause instead of the in-edges.
    """

    nodes: float = 1.05
    edges: float = 1.10
    train: float = 1.10


def assign(
    graph: Graph,
    parts: int,
    method: str = AUTO,
    seed: int = 0,
    balance: Balance | None = None,
) -> Tensor:
    """The part of every vertex, int32 [N]; the same for the same arguments."""
    if parts < 1:
        raise UserError(f"{parts} parts were asked for: a graph is cut into 1 part or more")
    method = choose_method(method)
    if method == PRESAMPLE:
        raise UserError("method 'presample' draws minibatches before it assigns: use weft.partition")
    if parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int32)
    return METHODS[method](graph, parts, seed, balance or Balance())


def choose_method(method: str) -> str:
    """The name of a method that can run here: `auto` means the best one that is installed."""
    if method == AUTO:
        if importlib.util.find_spec("pymetis"):
            return "metis"
        return "community" if native_available else "random"
    if method not in METHODS and method != PRESAMPLE:
        raise unknown("partition method", method, [AUTO, PRESAMPLE, *METHODS])
    return method


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
    native = native_for(graph.adjacency.indptr)
    if native is None:
        raise UserError(
            "methods 'stream' and 'community' need the native module: build it with `pip install -e .`, "
            "or use 'metis' or 'random'"
        )
    load, limit = loads(graph, parts, balance)
    indptr, indices = graph.adjacency.indptr.numpy(), graph.adjacency.indices.numpy()
    owner = native.stream_partition(indptr, indices, order, owner, parts, load, limit, 1)
    return torch.from_numpy(native.rebalance(indptr, indices, owner, parts, load, limit))


def balanced_metis_owner(graph: Graph, parts: int, seed: int, balance: Balance) -> Tensor:
    """METIS on one combined weight (pymetis takes no more), then what is still uneven is moved natively."""
    if graph.num_nodes <= parts or graph.num_edges == 0:
        return random_owner(graph, parts, seed, balance)
    load, limit = loads(graph, parts, balance)
    owner = metis_owner(graph.adjacency, parts, seed, load)
    native = native_for(graph.adjacency.indptr)
    if native is None:
        return owner
    indptr, indices = graph.adjacency.indptr.numpy(), graph.adjacency.indices.numpy()
    return torch.from_numpy(native.rebalance(indptr, indices, owner.numpy(), parts, load, limit))


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


METHODS: dict[str, Callable[[Graph, int, int, Balance], Tensor]] = {
    "random": random_owner,
    "metis": balanced_metis_owner,
    "stream": stream_owner,
    "community": community_owner,
}
