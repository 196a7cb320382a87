"""Orders of vertices, and assignments of vertices to parts, for CSRs that were verified.

Backends may differ in what they find: any order is an order, and no bound on loads is promised here.
"""

from torch import Tensor

from weft.kernels import reference
from weft.kernels.backends import has_kernel, kernel


def community_order(indptr: Tensor, indices: Tensor, room: int, growth: int, rounds: int) -> Tensor:
    """An order of the vertices in which neighbours lie close together, int64 [N].

    Communities are found by label propagation, at most `rounds` times a level: of up to `room` vertices, then of those
    `growth` times as many, and so on. The reference leaves vertices in the order of their numbers.
    """
    return kernel(reference.community_order, indptr)(indptr, indices, room, growth, rounds)


def stream_partition(
    indptr: Tensor,
    indices: Tensor,
    order: Tensor,  # int64, the vertices to assign, one after another
    owner: Tensor,  # int32 [N], parts so far; -1: none
    parts: int,
    load: Tensor,  # float64 [N, L], of each vertex
    limit: Tensor,  # float64 [L], of each part
    passes: int,
) -> Tensor:
    """The part of every vertex, int32 [N]: that of most neighbours, less a price for its size, where there is room.

    The reference deals out the vertices that have no part.
    """
    return kernel(reference.stream_partition, indptr)(indptr, indices, order, owner, parts, load, limit, passes)


def can_stream(indptr: Tensor) -> bool:
    """Whether stream_partition looks at neighbours."""
    return has_kernel(reference.stream_partition, indptr)


def rebalance(
    indptr: Tensor,
    indices: Tensor,
    owner: Tensor,  # int32 [N]
    parts: int,
    load: Tensor,
    limit: Tensor,
    weight: Tensor | None = None,  # int32 [E], of how many edges each counts
) -> Tensor:
    """The assignment after vertices moved out of parts above the limit, at the least cost in edges, int32 [N].

    The reference moves none.
    """
    return kernel(reference.rebalance, indptr)(indptr, indices, owner, parts, load, limit, weight)
