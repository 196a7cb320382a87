"""Orders of vertices, and assignments of vertices to parts."""

import torch
from torch import Tensor

from weft.kernels import _native


def community_order(indptr: Tensor, indices: Tensor, room: int, growth: int, rounds: int) -> Tensor:
    return torch.from_numpy(_native.community_order(indptr.numpy(), indices.numpy(), room, growth, rounds))


def stream_partition(
    indptr: Tensor, indices: Tensor, order: Tensor, owner: Tensor, parts: int, load: Tensor, limit: Tensor, passes: int
) -> Tensor:
    found = _native.stream_partition(
        indptr.numpy(), indices.numpy(), order.numpy(), owner.numpy(), parts, load.numpy(), limit.numpy(), passes
    )
    return torch.from_numpy(found)


def rebalance(
    indptr: Tensor,
    indices: Tensor,
    owner: Tensor,
    parts: int,
    load: Tensor,
    limit: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    edges, loads = (indptr.numpy(), indices.numpy()), (load.numpy(), limit.numpy())
    weights = None if weight is None else weight.numpy()
    return torch.from_numpy(_native.rebalance(*edges, owner.numpy(), parts, *loads, weights))
