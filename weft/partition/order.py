"""An order of vertices in which neighbours lie close together, so that aggregation finds rows in cache."""

import torch
from torch import Tensor

from weft.graph.graph import CSR

# Below this many edges the rows fit into cache in any order.
REORDER_FROM_EDGES = 100_000


def locality_order(adjacency: CSR, reorder: bool | None = None) -> Tensor:
    """Global ids in locality order, int64 [N]; `reorder` None: only where the graph is large enough."""
    if wants_reorder(adjacency, reorder):
        return community_order(adjacency)
    return torch.arange(adjacency.num_rows)


def wants_reorder(adjacency: CSR, reorder: bool | None) -> bool:
    return adjacency.num_edges > REORDER_FROM_EDGES if reorder is None else reorder


def community_order(adjacency: CSR) -> Tensor:
    """Label-propagation communities made contiguous; the same for every number of threads."""
    try:
        from weft.kernels import _native
    except ImportError:
        return torch.arange(adjacency.num_rows)
    if not hasattr(_native, "community_order"):
        return torch.arange(adjacency.num_rows)
    order = _native.community_order(adjacency.indptr.numpy(), adjacency.indices.numpy())
    return torch.from_numpy(order)
