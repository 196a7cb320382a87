"""Training passes that leave out rows the loss does not depend on, or compute layers again, change nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle.cases import UserLayer
from tests.oracle.test_equivalence import PIECES
from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, OVERLAPPED, SEQUENTIAL, DistributedGraph, Schedule, find_reach, order_by
from weft.comm import Communicator, all_reduce_gradients
from weft.layers import ModelConfig, Stack, build_model
from weft.partitioning import Shard, make_shards

LAYERS = 3
MODELS = ("gcn", "sage", "gat", "gatv2", "transformer", "gin", "user")


def a_graph():
    generator = torch.Generator().manual_seed(5)
    edges = [tuple(edge) for edge in torch.randint(0, 60, (110, 2), generator=generator).tolist()]
    return graph_of(60, edges, False, 6)


def a_model(name: str, rematerialise: bool) -> nn.Module:
    torch.manual_seed(3)
    config = ModelConfig(name="gcn" if name == "user" else name, layers=LAYERS, hidden=5, heads=2, dropout=0.3)
    if name == "gin":  # its batch statistics need every row
        config = config.model_copy(update={"name": "sage", "residual": True, "norm": "layer", "activation": "elu"})
    model = build_model(config, 6, 4)
    if name == "user":
        model = Stack([UserLayer(6, 6), UserLayer(6, 5), UserLayer(5, 4)], config)
    assert isinstance(model, Stack)
    model.rematerialise = rematerialise
    return model.double()


def step(
    comm: Communicator,
    shards: list[Shard],
    names: list[str],
    wanted: torch.Tensor,
    schedule: Schedule,
    low_memory: bool,
) -> Any:
    """The loss on the wanted vertices, all gradients, and how many rows the last layer computed."""
    shard = shards[comm.worker]
    sizes = None
    if low_memory:
        reach = find_reach(shard, comm, wanted[shard.global_ids], LAYERS)
        shard, sizes = order_by(shard, comm, reach.depth), reach.sizes
    graph = DistributedGraph(shard.to(comm.device), comm, schedule=schedule)
    if sizes is not None:
        graph.restrict(sizes)
    results = {}
    for name in names:
        model = a_model(name, low_memory).to(comm.device)
        assert graph.shard.x is not None
        x = graph.shard.x.double()
        graph.hold_constant(x)
        with graph.training_pass(2) as view:
            out = model(view, x)
        rows = wanted[shard.global_ids].nonzero().squeeze(1)
        loss = out[rows].square().sum()
        loss.backward()
        all_reduce_gradients(comm, model.parameters())
        total = comm.all_reduce(loss.detach().view(1), "control", "loss")
        results[name] = [total, *(p.grad for p in model.parameters() if p.grad is not None)]
    return results, 0 if sizes is None else sizes[-1], int(rows.numel())


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize(
    "schedule",
    [MATERIALISED, OVERLAPPED, PIECES, SEQUENTIAL],
    ids=["materialised", "overlapped", "pieces", "sequential"],
)
def test_restricted_and_rematerialised_equal_plain(num_workers, schedule):
    graph = a_graph()
    owner = torch.randint(0, num_workers, (60,), generator=torch.Generator().manual_seed(1)).int()
    wanted = torch.zeros(60, dtype=torch.bool)
    wanted[[3, 17, 40, 41]] = True
    shards = make_shards(graph, owner, num_workers)
    plain = run_workers(step, num_workers, shards, list(MODELS), wanted, MATERIALISED, False)
    found_all = run_workers(step, num_workers, shards, list(MODELS), wanted, schedule, True)
    for (expected, _, _), (found, computed, rows) in zip(plain, found_all, strict=True):
        assert computed == rows, "the last layer computes the vertices of the loss alone"
        for name in MODELS:
            for one, other in zip(expected[name], found[name], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def reach_of(comm: Communicator, shards: list[Shard], wanted: torch.Tensor) -> Any:
    shard = shards[comm.worker]
    reach = find_reach(shard, comm, wanted[shard.global_ids], LAYERS)
    return shard.global_ids, reach.depth, reach.spared


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_depth_is_the_distance_to_the_loss(num_workers):
    """On a path 0 -> 1 -> ... -> 9 with the loss on vertex 6, whatever the workers."""
    graph = graph_of(10, [(k, k + 1) for k in range(9)], False)
    wanted = torch.arange(10) == 6
    shards = make_shards(graph, (torch.arange(10) % num_workers).int(), num_workers)
    depth = torch.empty(10, dtype=torch.int64)
    for ids, found, spared in run_workers(reach_of, num_workers, shards, wanted):
        depth[ids] = found
        assert spared == pytest.approx(1 - (3 + 2 + 1) / 30)
    assert depth.tolist() == [4, 4, 4, 3, 2, 1, 0, 4, 4, 4]
