"""What stands in for an order of vertices and for assignments to parts where no backend has these kernels.

No oracle: another backend's results are better ones, not the same.
"""

import torch
from torch import Tensor


def community_order(indptr: Tensor, indices: Tensor, room: int, growth: int, rounds: int) -> Tensor:
    """The vertices as they are numbered."""
    return torch.arange(indptr.numel() - 1)


def stream_partition(
    indptr: Tensor, indices: Tensor, order: Tensor, owner: Tensor, parts: int, load: Tensor, limit: Tensor, passes: int
) -> Tensor:
    """Vertices without a part are dealt out in their order; the others stay."""
    dealt, rest = owner.clone(), order[owner[order] < 0]
    dealt[rest] = (torch.arange(rest.numel()) % parts).to(owner.dtype)
    return dealt


def rebalance(
    indptr: Tensor,
    indices: Tensor,
    owner: Tensor,
    parts: int,
    load: Tensor,
    limit: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """The assignment as it is."""
    return owner
