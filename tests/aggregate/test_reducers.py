"""Reducers by name: one of a user's own is exact under every schedule, for any number of workers."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.aggregate import own_reducer  # registers it
from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, OVERLAPPED, SEQUENTIAL, DistributedGraph, format_named
from weft.aggregate.reducers import register_reducer
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.partitioning import Shard, make_shards

VERTICES, COLUMNS = 12, 3


def a_graph() -> Graph:
    edges = torch.randint(0, VERTICES - 1, (50, 2), generator=torch.Generator().manual_seed(1))
    return graph_of(VERTICES, [tuple(edge) for edge in edges.tolist()], False)  # the last vertex has no edges


def rows(seed: int) -> Tensor:
    return torch.randn(VERTICES, COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 5


def aggregated(comm: Communicator, shards: list[Shard], schedule: object) -> tuple[Tensor, Tensor, Tensor]:
    assert own_reducer
    graph = DistributedGraph(shards[comm.worker], comm, schedule=schedule)  # type: ignore[arg-type]
    x = rows(2)[graph.global_ids].requires_grad_()
    with graph.training_pass(1) as view:
        out = view.aggregate(x, "logsumexp")
    (out * rows(3)[graph.global_ids]).sum().backward()
    assert x.grad is not None
    return graph.global_ids, out.detach(), x.grad


def dense(graph: Graph) -> tuple[Tensor, Tensor]:
    x = rows(2).requires_grad_()
    bounds, sources = graph.adjacency.indptr.tolist(), graph.adjacency.indices.long()
    each = [x[sources[low:high]] for low, high in pairwise(bounds)]
    out = torch.stack([some.logsumexp(0) if len(some) else x.new_zeros(COLUMNS) for some in each])
    (out * rows(3)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("schedule", [MATERIALISED, SEQUENTIAL, OVERLAPPED], ids=["one", "each", "overlapped"])
def test_a_reducer_from_outside_is_exact(num_workers: int, schedule: object) -> None:
    graph = a_graph()
    shards = make_shards(graph, torch.arange(VERTICES) % num_workers, num_workers)
    out, grad = torch.empty(VERTICES, COLUMNS).double(), torch.empty(VERTICES, COLUMNS).double()
    for ids, some_out, some_grad in run_workers(aggregated, num_workers, shards, schedule):
        out[ids], grad[ids] = some_out, some_grad
    wanted_out, wanted_grad = dense(graph)
    torch.testing.assert_close(out, wanted_out)
    torch.testing.assert_close(grad, wanted_grad)


def test_what_it_declares_is_kept_to() -> None:
    """Rows that would be rounded are refused, and a sum is the only thing that is added in place."""
    (shard,) = make_shards(a_graph(), torch.zeros(VERTICES).int(), 1)
    graph = DistributedGraph(shard, format=format_named("int8"))
    with graph.training_pass(1) as view:
        with pytest.raises(UserError, match="int8 rounds rows, and it is read as a softmax is"):
            view.aggregate(rows(2), "logsumexp")
        with pytest.raises(UserError, match="has no `into`"):
            view.aggregate(rows(2), "logsumexp", into=rows(2))
        with pytest.raises(UserError, match="unknown reducer 'logsumexq': did you mean 'logsumexp'"):
            view.aggregate(rows(2), "logsumexq")
    with pytest.raises(ValueError, match="there is a reducer 'logsumexp' already"):
        register_reducer("logsumexp", own_reducer.LogSumExp)
