"""Restricted passes on drawn directed graphs: whatever a worker has to compute, all of them exchange the same."""

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.oracle.cases import MessageLayer, UserLayer
from tests.oracle.test_equivalence import SCHEDULES
from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import DistributedGraph, find_reach, format_named, order_by
from weft.comm import Communicator, all_reduce_gradients
from weft.layers import ModelConfig, Stack, build_model, replicated_parameters
from weft.partitioning import Shard, make_shards

OWN = {"user": UserLayer, "message": MessageLayer}
FEATURES, CLASSES = 6, 4


@dataclass(frozen=True)
class Setting:
    model: ModelConfig
    schedule: str
    codec: str
    delta: bool
    rematerialises: bool
    holds_input: bool  # its aggregates are kept
    wanted: tuple[int, ...]  # vertices of the loss


def draw_setting(chance: random.Random, num_nodes: int) -> Setting:
    name = chance.choice(["gcn", "sage", "gat", "gatv2", "transformer", "rgcn", "user", "message"])
    schedule = chance.choice([name for name in SCHEDULES if name != "packed"])
    codec = chance.choice(["raw", "raw", "bf16", "int8", "int2", "adaptive"])
    if name == "message" or (name in ("gatv2", "user") and codec != "bf16"):
        codec = "raw"
    model = ModelConfig(
        name=name,
        layers=chance.choice([1, 2, 3]),
        hidden=5,
        heads=2,
        dropout=chance.choice([0.0, 0.3]),
        residual=chance.random() < 0.3,
        norm=chance.choice(["none", "layer"]),
        activation=chance.choice(["relu", "elu"]),
        output=chance.choice(["layer", "layer", "linear"]),
    )
    delta = codec in ("int8", "int2", "adaptive") and schedule in ("materialised", "overlapped")
    wanted = tuple(chance.randrange(num_nodes) for _ in range(chance.choice([1, 1, 2, 3])))
    return Setting(model, schedule, codec, delta, chance.random() < 0.3, chance.random() < 0.6, wanted)


def draw_case(seed: int, num_workers: int) -> tuple[list[Shard], Setting]:
    """A graph without edges up to one with many, on workers of which the first may have all of it."""
    chance = random.Random(seed)
    num_nodes = chance.choice([4, 8, 20, 40])
    count = chance.choice([0, num_nodes // 2, num_nodes, 2 * num_nodes, 4 * num_nodes])
    edges = [(chance.randrange(num_nodes), chance.randrange(num_nodes)) for _ in range(count)]
    skew = chance.choice([1, 3, 5])
    owner = torch.tensor([int(chance.random() ** skew * num_workers) for _ in range(num_nodes)]).int()
    graph = graph_of(num_nodes, edges, False, FEATURES)
    return make_shards(graph, owner, num_workers), draw_setting(chance, num_nodes)


def a_model(config: ModelConfig, relations: int, rematerialises: bool) -> Stack:
    torch.manual_seed(3)
    if config.name in OWN:
        widths = [FEATURES] + [CLASSES] * config.layers
        layers = [OWN[config.name](into, out) for into, out in pairwise(widths)]
        model = Stack(layers, config.model_copy(update={"name": "gcn"}), widths)
    else:
        built = build_model(config, FEATURES, CLASSES, relations)
        assert isinstance(built, Stack)
        model = built
    model.rematerialise = rematerialises
    return model


def losses_of(comm: Communicator, shard: Shard, setting: Setting, restricted: bool) -> list[float]:
    """The losses of three steps, after each of which the model is evaluated on the whole graph."""
    wanted = torch.isin(shard.global_ids, torch.tensor(setting.wanted))
    sizes = None
    if restricted:
        reach = find_reach(shard, comm, wanted, setting.model.layers)
        shard, sizes = order_by(shard, comm, reach.depth), reach.sizes
        wanted = torch.isin(shard.global_ids, torch.tensor(setting.wanted))
    format = format_named(setting.codec, 1, 0.5, setting.delta)
    graph = DistributedGraph(shard.to(comm.device), comm, format, SCHEDULES[setting.schedule])
    if sizes is not None:
        graph.restrict(sizes)
    model = a_model(setting.model, shard.num_relations, setting.rematerialises).to(comm.device)
    x = graph.shard.x
    assert x is not None
    if setting.holds_input:
        graph.hold_constant(x)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    rows, losses = wanted.nonzero().squeeze(1), []
    for epoch in (1, 2, 3):
        model.train()
        with graph.training_pass(epoch) as view:
            out = model(view, x)
        loss = out[rows].square().mean() if len(rows) else 0.0 * out.sum()
        loss.backward()
        all_reduce_gradients(comm, list(replicated_parameters(model)))
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(comm.all_reduce(loss.detach().view(1).clone(), "control", "loss")))
        format.end_epoch(epoch, comm)
        model.eval()
        with torch.no_grad(), graph.exact_pass() as view:
            model(view, x)
    return losses


def both(comm: Communicator, cases: list[tuple[int, list[Shard], Setting]]) -> Any:
    found = []
    for seed, shards, setting in cases:
        comm.step = f"case {seed}"
        runs = [losses_of(comm, shards[comm.worker], setting, restricted) for restricted in (True, False)]
        found.append((seed, setting, *runs))
    return found


@pytest.mark.parametrize("num_workers", [2, 3])
def test_restricted_passes_lose_as_much_as_whole_ones_whatever_is_drawn(num_workers):
    cases = [(seed, *draw_case(seed, num_workers)) for seed in range(24)]
    for answer in run_workers(both, num_workers, cases, timeout_seconds=300.0):
        for seed, setting, restricted, whole in answer:
            rel, least = (1e-4, 1e-6) if setting.codec == "raw" else (0.5, 1.0)
            assert restricted == pytest.approx(whole, rel=rel, abs=least), (seed, setting)
