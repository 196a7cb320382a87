"""Which plan a run should follow: every one that its model and graph allow is counted, modelled and compared."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from weft.comm import Communicator
from weft.config import RunConfig, make_config, merge
from weft.cost import Option, Speeds, best_of, full_options, measure_speeds, minibatch_options, shape_of
from weft.errors import UserError
from weft.footprint import Load, memory_limit
from weft.graph.splits import known
from weft.layers import Layer, Stack, build_model
from weft.partition import Shard
from weft.sample import Features, Standing
from weft.sample.count import Counter
from weft.strategy import PRESETS
from weft.train.evaluate import pick_masks
from weft.train.minibatches import needs_of, vertex_seeds


def weigh(
    config: RunConfig,
    shard: Shard,
    comm: Communicator,
    model: nn.Module,
    load: Load,
    megabits: float | None = None,
    latency: float | None = None,
) -> tuple[list[Option], Speeds]:
    """What each plan would take; links are measured unless they are given. Every worker gets the same answer."""
    if not isinstance(model, Stack):
        raise UserError("plans are compared layer by layer, so the model must be a weft.layers.Stack: choose yourself")
    if config.train.task != "vertices":
        raise UserError("plans are compared for train.task=vertices: choose one yourself (--strategy batchgnn)")
    speeds = measure_speeds(comm, megabits, latency)
    room = memory_limit(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))).num_bytes
    shape, first = shape_of(model), model.layers[0]
    constant = shard.x is not None and config.model.input_dropout == 0
    keeps = constant and isinstance(first, Layer) and first.input_aggregate() is not None
    options = full_options(comm, load, shape, speeds, keeps, config.memory, room)
    masks = pick_masks(shard, config.train.split)
    if shard.y is None or "train" not in masks:
        raise UserError(f"{shard.graph_name} has no training vertices, so there are no minibatches to compare")
    standing = Standing(shard, comm)
    rows = (masks["train"] & known(shard.y)).nonzero().squeeze(1)
    source = vertex_seeds(rows, shard.global_ids, config.sample.batch, config.seed)(standing, comm)
    row_bytes = _row_bytes(config, shard)
    keeping = (2 if first.reads_input or config.model.residual else 1) if keeps and isinstance(first, Layer) else 0
    counter = Counter(
        shard, comm, standing, source, needs_of(model), config.sample, config.seed, shape, row_bytes, keeping,
        trains_input=shard.x is None,
    )  # fmt: skip
    options += minibatch_options(counter.count(), speeds, source.steps, model, load, row_bytes, room)
    return options, speeds


def _row_bytes(config: RunConfig, shard: Shard) -> int:
    """Of an input row, at rest and on the wire."""
    if shard.x is None:
        return config.model.embedding * 4
    stored = Features(config.sample.features, shard.x.shape[1], shard.x.dtype).stored(shard.x[:1], shard.global_ids[:1])
    return stored.element_size() * stored.shape[1]


def with_choice(config: RunConfig, option: Option) -> RunConfig:
    """The config with a plan's settings in the place of `auto`."""
    sections: Mapping[str, Any] = merge(PRESETS[option.strategy].settings, option.settings)
    return make_config(merge(config.model_dump(mode="json"), {"strategy": option.strategy, **sections}))


def places(config: RunConfig, found: Mapping[str, Any]) -> dict[str, Any]:
    """Where the products of the full graph could be done, modelled from what was weighed, and priced."""
    from weft.serverless.places import calibrate, compare, machine_of
    from weft.serverless.prices import read_prices
    from weft.serverless.simulate import Graph

    graph = Graph(**found["graph"])
    model = build_model(config.model, graph.features, graph.classes)
    machine = machine_of(found["speeds"], calibrate())
    prices = read_prices(config.executor.prices)
    bound = 0 if not config.executor.pipelines else config.executor.bound
    options = compare(graph, model, config.workers, machine, prices, bound)
    return {"prices": str(prices.date), "options": [option.described() for option in options]}


def described(options: list[Option], speeds: Speeds) -> dict[str, Any]:
    """For files."""
    return {
        "best": best_of(options).label,
        "megabits": speeds.megabits,
        "latency_seconds": speeds.latency,
        "plans": [asdict(option) for option in options],
    }
