"""Cut by what minibatches use: METIS on the edges that they draw, each weighed by how often (GSplit).

weft/sample/presample.py draws minibatches and counts; here counts become an assignment.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from weft.graph.csr import CSR, filter_csr
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.kernels.partition import rebalance, stream_partition
from weft.partitioning.methods import balanced_metis_owner, loads
from weft.partitioning.metis import metis_owner
from weft.partitioning.partitioners import Balance
from weft.partitioning.touches import Touches

TRIES = 4  # cuts of METIS, of which the best is taken: one alone differs from seed to seed by more than weights gain
MEAN_WEIGHT = 100  # of the edges that may be drawn
MOST_WEIGHT = 2**30  # of all edges together, both directions: METIS sums in 32 bits


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
    owner = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    owner[chosen] = metis_owner(_among(used, chosen), parts, seed, load[chosen.numpy()], weight, TRIES)
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(owner.numpy() < 0))
    bounds = torch.from_numpy(load), torch.from_numpy(limit)
    if rest.size:
        whole = graph.adjacency.indptr, graph.adjacency.indices
        owner = stream_partition(*whole, torch.from_numpy(rest), owner, parts, *bounds, 2)
    return rebalance(used.indptr, used.indices, owner, parts, *bounds, torch.from_numpy(weight))


def edge_weight(touches: Touches) -> Array:
    """What it costs to cut each edge, int32 [E]: as often as it is to be expected; 0 for those that hardly ever are.

    An edge that was drawn weighs 1 at least.
    """
    expected = touches.expected().numpy()
    total = max(1.0, float(expected.sum()))
    scale = min(MEAN_WEIGHT * np.count_nonzero(expected) / total, MOST_WEIGHT / (2 * total))
    weight: Array = np.maximum(np.rint(expected * scale), touches.edges.numpy() > 0).astype(np.int32)
    return weight


def _among(csr: CSR, chosen: Tensor) -> CSR:
    """The same edges with only the chosen vertices (bool [N]), which are all that have any, numbered anew."""
    number = torch.cumsum(chosen, 0, dtype=torch.int32) - 1
    indptr = torch.cat([csr.indptr[:1], csr.indptr[1:][chosen]])
    return replace(csr, indptr=indptr, indices=number[csr.indices.long()].int(), num_cols=int(chosen.sum()))
