"""An order of vertices in which neighbours lie close together, so that aggregation finds rows in cache."""

import torch
from torch import Tensor

from weft.graph.csr import CSR
from weft.kernels import partition

# Below this many edges the rows fit into cache in any order.
REORDER_FROM_EDGES = 100_000
# Communities hold at most so many vertices (rows of 512 bytes: half of a 512 KiB cache), those made of them
# GROWTH times as many, and so on: a level for every size of cache.
ROOM = 512
GROWTH = 8
ROUNDS = 5


def locality_order(adjacency: CSR, reorder: bool | None = None) -> Tensor:
    """Global ids in locality order, int64 [N]; `reorder` None: only where the graph is large enough."""
    if wants_reorder(adjacency, reorder):
        return community_order(adjacency)
    return torch.arange(adjacency.num_rows)


def wants_reorder(adjacency: CSR, reorder: bool | None) -> bool:
    return adjacency.num_edges > REORDER_FROM_EDGES if reorder is None else reorder


def community_order(adjacency: CSR) -> Tensor:
    """Communities by label propagation made contiguous; ids as they are without the native module."""
    return partition.community_order(adjacency.indptr, adjacency.indices, ROOM, GROWTH, ROUNDS)
