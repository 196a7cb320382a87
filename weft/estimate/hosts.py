"""The memory that each host of a run needs, from its config and the metadata of its parts: no part is loaded.

It is what a scheduler is asked for, which kills what takes more: estimates are rounded up, and SPARE times as much is
asked for.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from weft.config import RunConfig
from weft.errors import UserError
from weft.estimate.footprint import BASE_BYTES, WorkerLoad, estimate_bytes, worker_load
from weft.layers import build_model, edges_to_read
from weft.layers.learned_columns import LearnedColumn
from weft.partitioning import PartitionInfo, read_partition
from weft.partitioning.info import check_workers, parts_of
from weft.partitioning.read import targets_of
from weft.sample import fanouts_for
from weft.strategy import ExchangeConfig

SPARE = 1.5  # of the estimate: layers differ, and files that are read stay in memory for a while
AGENT_BYTES = BASE_BYTES  # torchrun, which imports torch, too
RECOMPUTED = {"rematerialise": True}  # evaluation keeps nothing for a backward pass


@dataclass(frozen=True)
class HeldParts:
    """What a worker holds, as the metadata of its parts say: the halo at most, since parts may share some of it."""

    num_nodes: int
    num_halo: int
    num_edges: int
    num_outputs: int
    num_edge_features: int
    num_relations: int


def host_bytes(config: RunConfig, path: Path, workers_per_host: int) -> int:
    """Bytes to ask for on each host, for the one that needs most. `path`: a partition."""
    info = read_partition(path)
    check_workers(path, config.workers, info.num_parts)
    if config.executor.pipelines:
        raise UserError(f"what a graph server of executor {config.executor.name} needs is not estimated: give --memory")
    outputs = config.model.hidden
    if config.train.task == "vertices":
        outputs = info.num_classes or targets_of(path)
        if not outputs:
            raise UserError(f"{path} has no labels to learn: partition a graph with labels")
    width = info.num_features or config.model.embedding
    if info.types is not None:
        width = config.model.hidden  # of what the encoder gives
    model = _model(config, info, width, outputs)
    needs = [_worker_bytes(config, info, worker, model, width, outputs) for worker in range(config.workers)]
    hosts = [sum(needs[first : first + workers_per_host]) for first in range(0, config.workers, workers_per_host)]
    return math.ceil(SPARE * (AGENT_BYTES + max(hosts)))


def _model(config: RunConfig, info: PartitionInfo, width: int, outputs: int) -> nn.Module:
    """The model that workers will build; weights of edges, which take nothing of it, are taken to be there."""
    reads = edges_to_read(config.model, info.num_edge_features, True, info.graph_name)
    learned = () if info.preparation is None else LearnedColumn.all_of(info.preparation.learned)
    widths = () if info.types is None else info.types.widths
    columns = () if info.types is None else tuple(map(LearnedColumn.all_of, info.types.learned_columns))
    return build_model(config.model, width, outputs, info.num_relations, None, reads, learned, widths, columns)


def _worker_bytes(
    config: RunConfig, info: PartitionInfo, worker: int, model: nn.Module, width: int, outputs: int
) -> int:
    """Bytes that one worker needs at its peak."""
    parts = [info.parts[part] for part in parts_of(worker, config.workers, info.num_parts)]
    nodes, halo, edges = (sum(getattr(part, name) for part in parts) for name in ("nodes", "halo", "edges"))
    held = HeldParts(
        nodes, min(halo, info.num_nodes - nodes), edges, outputs, info.num_edge_features, info.num_relations
    )
    load = worker_load(config, held, model, width)
    if not info.num_features and info.types is None:  # learned rows are weights, too
        load = replace(load, parameters=load.parameters + nodes * width)
    if config.exchange.plan == "full":
        return estimate_bytes(load, config.exchange, config.memory)
    return sampled_bytes(config, load, info.num_nodes)


def sampled_bytes(config: RunConfig, load: WorkerLoad, num_nodes: int) -> int:
    """Bytes of a worker that trains on minibatches: rows at rest, an evaluation, a step at most, and rows to come."""
    resting = estimate_bytes(load, ExchangeConfig(), config.memory.model_copy(update=RECOMPUTED))
    rows, reached = config.sample.batch / config.workers, 1.0
    for fanout in fanouts_for(config.sample, config.model.layers):
        reached = math.inf if fanout < 0 else reached * fanout
        rows += config.sample.batch / config.workers * reached
    rows = min(rows, num_nodes)  # a step reads no vertex twice
    hidden = load.widths[1:]
    step = rows * (3 * sum(hidden) + load.widths[0] + 4 * max(hidden)) * load.itemsize
    places = num_nodes * (torch.int32.itemsize + 1)  # where every vertex lies, and a mark for it
    whole = num_nodes * load.widths[0] * load.itemsize  # the rows of all vertices: no macrobatch holds more
    coming = min(config.sample.memory_mib * (1 << 20), 2 * whole)  # the one that is trained on, and the next
    hot = min(config.sample.hot_mib * (1 << 20), whole)
    return resting + int(step + coming + hot) + places
