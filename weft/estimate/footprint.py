"""The memory that a worker will need, the memory that it may use, and the error where the first is larger."""

import math
import resource
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from weft.config import RunConfig
from weft.disk.space import control_group_bytes, machine_memory_bytes
from weft.errors import UserError
from weft.layers import Stack, traits_of
from weft.strategy import ExchangeConfig, MemoryConfig

GIB = 1 << 30
BASE_BYTES = 350 << 20  # the interpreter, torch and its libraries
# Address space that a process reserves without using it: libraries, thread stacks, arenas.
RESERVED_BYTES = 900 << 20


@dataclass(frozen=True)
class WorkerLoad:
    """What one worker holds of the graph and the model."""

    rows: int
    halo: int
    edges: int
    widths: tuple[int, ...]  # input, then what comes out of each layer
    itemsize: int
    workers: int
    attention: bool = False  # whether any layer reads the rows of sources again in the backward pass
    parameters: int = 0  # numbers that every worker holds alike
    edge_columns: int = 0  # of the features of edges that some layer reads
    relations: int = 0  # kinds of edges, each of which has an aggregate of its own in some layer


class Held(Protocol):
    """What a worker holds of the graph, in numbers: a shard knows them, and so does the metadata of its parts."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def num_halo(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def num_edge_features(self) -> int: ...
    @property
    def num_relations(self) -> int: ...


def worker_load(config: RunConfig, shard: Held, model: nn.Module, width: int) -> WorkerLoad:
    """What this worker holds of its shard and a model whose input has `width` columns."""
    # The input of a stack is wider than the features where some of their columns are learned.
    first, *widths = model.widths if isinstance(model, Stack) and model.widths else (width,)
    traits = [traits_of(module) for module in model.modules()]
    if not widths:  # a model of a user's own: as wide and deep as its config says
        widths = [*[config.model.hidden] * (config.model.layers - 1), shard.num_outputs]
    return WorkerLoad(
        rows=shard.num_nodes,
        halo=shard.num_halo,
        edges=shard.num_edges,
        widths=(first, *widths),
        itemsize=getattr(torch, config.train.precision).itemsize,
        workers=config.workers,
        attention=any(layer.attention for layer in traits),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        edge_columns=shard.num_edge_features if any("features" in (layer.edge_data or ()) for layer in traits) else 0,
        relations=shard.num_relations if any(layer.by_relation for layer in traits) else 0,
    )


def estimate_bytes(load: WorkerLoad, exchange: ExchangeConfig, memory: MemoryConfig) -> int:
    """Bytes that the worker's rows, edges and messages take at the peak of an epoch. An estimate: layers differ.

    Per layer one matrix is its aggregate, and without rematerialisation about two more are kept for the backward
    pass. Attention and maxima keep (materialised) the halo they read, or fetch it again (sequential).
    """
    hidden = load.widths[1:]
    widest = max(hidden)
    refetches = load.attention
    kept = sum(hidden) * (1 if memory.rematerialise else 3) + load.widths[0]
    at_work = 4 * widest
    kept += load.relations * sum(load.widths[:-1])
    at_work += load.relations * max(load.widths[:-1])
    own = load.rows * (kept + at_work) * load.itemsize
    edges = load.edges * ((16 if refetches else 8) + 8 * load.edge_columns) + load.rows * 16
    if exchange.schedule == "sequential":
        block = load.halo / max(1, load.workers - 1) / exchange.blocks
        moving = 2 * (exchange.prefetch + 1) * block * widest * load.itemsize
    else:
        layers_kept = sum(hidden) if refetches else widest
        moving = load.halo * (layers_kept + 2 * widest) * load.itemsize
    # each parameter, its gradient, the optimiser's two moments, and the best so far
    return BASE_BYTES + own + edges + int(moving) + load.halo * 24 + 5 * load.parameters * load.itemsize


@dataclass(frozen=True)
class Limit:
    """A limit of this process's memory, and where it comes from."""

    num_bytes: int
    source: str


def memory_limit(local_workers: int) -> Limit:
    """The memory that one of several workers on this machine can count on."""
    limits = [Limit(machine_memory_bytes() // max(1, local_workers), "the machine's memory, shared by its workers")]
    group = control_group_bytes()
    if group is not None:
        limits.append(Limit(group // max(1, local_workers), "the control group's limit, shared by its workers"))
    for name, option, spare in (("RLIMIT_AS", "v", RESERVED_BYTES), ("RLIMIT_DATA", "d", 0)):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            limits.append(Limit(max(0, soft - spare), f"ulimit -{option}"))
    return min(limits, key=lambda limit: limit.num_bytes)


def refuse_if_too_large(load: WorkerLoad, exchange: ExchangeConfig, memory: MemoryConfig, local_workers: int) -> None:
    """At the start of a run: refuses what will not fit, so that no process is killed later."""
    limit = memory_limit(local_workers)
    need = estimate_bytes(load, exchange, memory)
    if memory.check and need > limit.num_bytes:
        raise UserError(
            f"schedule {exchange.schedule} needs about {_gib(need)} in each of {load.workers} worker(s), but "
            f"{limit.source} leaves {_gib(limit.num_bytes)}: {_advice(load, exchange, memory)} "
            "(memory.check=false tries all the same)"
        )


def explain_failure(
    error: BaseException, load: WorkerLoad, exchange: ExchangeConfig, memory: MemoryConfig
) -> UserError:
    """The error for an allocation that failed although the estimate had fitted."""
    need = estimate_bytes(load, exchange, memory)
    return UserError(
        f"memory ran out: schedule {exchange.schedule} needs about {_gib(need)} in each of {load.workers} worker(s): "
        f"{_advice(load, exchange, memory)} ({str(error).splitlines()[0][:200]})"
    )


_NO_MEMORY = (
    "can't allocate memory",
    "bad_alloc",
    "can't start new thread",  # a thread's stack is memory, too
    "CUDA out of memory",
)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation, whoever reports it."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == 12
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)


def _advice(load: WorkerLoad, exchange: ExchangeConfig, memory: MemoryConfig) -> str:
    advice = []
    if exchange.schedule != "sequential" or not memory.rematerialise:
        sequential = exchange.model_copy(update={"schedule": "sequential"})
        less = estimate_bytes(load, sequential, memory.model_copy(update={"rematerialise": True}))
        advice.append(f"schedule sequential (--strategy sar) needs about {_gib(less)}")
    advice.append("more workers need less each")
    if load.workers == 1:
        advice.append("--strategy sar with partition.parts above 1 caches_input rows in files")
    return ", ".join(advice)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB / 10 else f"{math.ceil(num_bytes / (1 << 20))} MiB"
