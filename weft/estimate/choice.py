"""The choice of a plan: each one that a run's model and graph allow is counted, modelled and compared."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from weft.comm import Communicator
from weft.config import RunConfig, make_config, merge
from weft.errors import UserError
from weft.estimate.cost import (
    PlanEstimate,
    Speeds,
    best_of,
    full_graph_estimates,
    layer_shapes,
    measure_speeds,
    minibatch_estimates,
)
from weft.estimate.count import WorkCounter
from weft.estimate.footprint import WorkerLoad, memory_limit
from weft.graph.splits import known
from weft.layers import Stack, build_model, traits_of
from weft.partitioning import Shard
from weft.sample import Features, PartitionBook, VertexSource
from weft.strategy import PRESETS
from weft.training.evaluate import pick_masks
from weft.training.minibatches import needs_of
from weft.training.timed import own_times, sees_of


def estimate_plans(
    config: RunConfig,
    shard: Shard,
    comm: Communicator,
    model: nn.Module,
    load: WorkerLoad,
    megabits: float | None = None,
    latency: float | None = None,
) -> tuple[list[PlanEstimate], Speeds]:
    """What each plan would take; links are measured unless they are given. Every worker gets the same result."""
    if not isinstance(model, Stack):
        raise UserError("plans are compared layer by layer, so the model must be a weft.layers.Stack: choose yourself")
    if config.train.task != "vertices":
        raise UserError("plans are compared for train.task=vertices: choose one yourself (--strategy batchgnn)")
    speeds = measure_speeds(comm, megabits, latency)
    available_bytes = memory_limit(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))).num_bytes
    shapes, first = layer_shapes(model), traits_of(model.layers[0])
    constant = shard.x is not None and shard.types is None and model.columns is None and config.model.input_dropout == 0
    caches_input = constant and first.input_aggregate is not None
    sees = sees_of(config.train, shard)
    caches_input = caches_input and sees == "all"
    estimates = []
    if sees == "all":
        estimates = full_graph_estimates(comm, load, shapes, speeds, caches_input, config.memory, available_bytes)
    masks = pick_masks(shard, config.train.split)
    if shard.y is None or "train" not in masks:
        raise UserError(f"{shard.graph_name} has no training vertices, so there are no minibatches to compare")
    book = PartitionBook(shard, comm)
    rows = (masks["train"] & known(shard.y)).nonzero().squeeze(1)
    times = None if sees == "all" else own_times(shard)
    source = VertexSource(rows, shard.global_ids, config.sample.batch, config.seed, comm, book.own.start, times)
    row_bytes = _row_bytes(config, shard)
    cached_width = (2 if first.reads_input or config.model.residual else 1) if caches_input else 0
    counter = WorkCounter(
        shard, comm, book, source, needs_of(model), config.sample, config.seed, shapes, row_bytes, cached_width,
        trains_input=shard.learned is not None, sees=sees,
    )  # fmt: skip
    estimates += minibatch_estimates(counter.count(), speeds, source.steps, model, load, row_bytes, available_bytes)
    return estimates, speeds


def _row_bytes(config: RunConfig, shard: Shard) -> int:
    """Bytes of an input row, in the feature store and on the wire; of several types, on average."""
    if shard.types is not None:
        widths = [kind.num_features or config.model.hidden for kind in shard.types.vertices]
        counts = [kind.count for kind in shard.types.vertices]
        mean = sum(width * count for width, count in zip(widths, counts, strict=True)) / max(1, sum(counts))
        return _at_rest_bytes(config, torch.zeros(1, max(1, round(mean))), torch.zeros(1, dtype=torch.int64))
    if shard.x is None:
        return config.model.embedding * 4
    return _at_rest_bytes(config, shard.x[:1], shard.global_ids[:1])


def _at_rest_bytes(config: RunConfig, x: Tensor, ids: Tensor) -> int:
    stored = Features(config.sample.features, x.shape[1], x.dtype).stored(x, ids)
    return stored.element_size() * stored.shape[1]


def with_choice(config: RunConfig, estimate: PlanEstimate) -> RunConfig:
    """The config with a plan's settings in the place of `auto`."""
    sections: Mapping[str, Any] = merge(PRESETS[estimate.strategy].settings, estimate.settings)
    return make_config(merge(config.model_dump(mode="json"), {"strategy": estimate.strategy, **sections}))


def compare_places(config: RunConfig, found: Mapping[str, Any]) -> dict[str, Any]:
    """Where the products of the full graph could be done, modelled from what `weft plan` found, and priced."""
    from weft.serverless.deployments import calibrate, compare_deployments, machine_of
    from weft.serverless.prices import read_prices
    from weft.serverless.simulate import Graph

    graph = Graph(**found["graph"])
    model = build_model(config.model, graph.features, graph.classes)
    machine = machine_of(found["speeds"], calibrate())
    prices = read_prices(config.executor.prices)
    bound = 0 if not config.executor.pipelines else config.executor.bound
    options = compare_deployments(graph, model, config.workers, machine, prices, bound)
    return {"prices": str(prices.date), "options": [option.to_dict() for option in options]}


def plans_as_json(estimates: list[PlanEstimate], speeds: Speeds) -> dict[str, Any]:
    """The comparison as plain values, for files."""
    return {
        "best": best_of(estimates).label,
        "megabits": speeds.megabits,
        "latency_seconds": speeds.latency,
        "plans": [asdict(estimate) for estimate in estimates],
    }
