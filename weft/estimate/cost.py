"""The modelled time and memory of each plan: counted work by measured speeds, and bytes by the links' bandwidth.

The model is simple: the slowest worker computes, rows cross the slowest link, and each wait costs the latency. Where
workers share cores, one with more work gets more of them. Macrobatches are fetched while steps compute, over the links
that steps exchange rows on.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft import kernels
from weft.comm import Communicator, measure_channels
from weft.estimate.count import LayerShapes, PlanVariant, StepWork
from weft.estimate.footprint import WorkerLoad, estimate_bytes
from weft.layers import Stack, traits_of
from weft.strategy import PRESETS, ExchangeConfig, MemoryConfig

_ROWS, _WIDTH, _DEGREE, _TIMES = 4096, 256, 8, 5


@dataclass(frozen=True)
class Speeds:
    """How fast this machine and its links are, the same on every worker."""

    read: float  # seconds for a number that an aggregate reads
    multiply: float  # seconds for a multiplication of a product
    byte: float  # seconds for a byte to a worker, while all talk
    latency: float  # seconds that a wait for others takes
    sharing: float = 1.0  # how many times as fast a worker computes while the others wait

    @property
    def megabits(self) -> float:
        return 8e-6 / self.byte if self.byte else float("inf")


def measure_speeds(comm: Communicator, megabits: float | None = None, latency: float | None = None) -> Speeds:
    """Kernels timed on all workers at once, as they share cores; links too, unless they are given."""
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    indptr = torch.arange(0, _ROWS * _DEGREE + 1, _DEGREE)
    indices = torch.randint(0, _ROWS, (_ROWS * _DEGREE,), dtype=torch.int32)

    def reading() -> float:
        return _seconds(lambda: kernels.spmm(indptr, indices, x)) / (indices.numel() * _WIDTH)

    def multiplying() -> float:
        return _seconds(lambda: x @ weight) / (_ROWS * _WIDTH * _WIDTH)

    comm.barrier("speeds")
    read = reading()
    comm.barrier("speeds")
    multiply = multiplying()
    comm.barrier("speeds")
    sharing = read / reading() if comm.worker == 0 else 1.0  # the others wait
    slowest = torch.tensor([read, multiply, sharing], dtype=torch.float64)
    comm.all_reduce(slowest, "control", "speeds", "max")
    byte, wait = 0.0, 0.0
    if comm.num_workers > 1 and (megabits is None or latency is None):
        channels = measure_channels(comm)
        # all workers send to all: a worker's link carries all of its channels at once
        byte, wait = float(channels.seconds_per_byte.max()) / (comm.num_workers - 1), float(channels.latency.max())
    if comm.num_workers > 1:
        byte = byte if megabits is None else 8e-6 / megabits
        wait = wait if latency is None else latency
    read, multiply, sharing = slowest.tolist()
    return Speeds(read, multiply, byte, wait, max(1.0, sharing))


def _seconds(work: Any) -> float:
    work()
    started = time.perf_counter()
    for _ in range(_TIMES):
        work()
    return (time.perf_counter() - started) / _TIMES


@dataclass(frozen=True)
class PlanEstimate:
    """A plan that a run could follow, and what an epoch of it is modelled to take."""

    label: str
    strategy: str  # the preset
    settings: Mapping[str, Mapping[str, Any]]  # on top of it, by section
    rows: float  # of a step, over all workers
    remote: float
    edges: float
    megabytes: float  # that all workers send in an epoch
    rounds: float  # of a step
    edge_balance: float
    memory_bytes: int  # of the largest worker
    seconds: float  # of an epoch
    fits: bool


def layer_shapes(model: Stack) -> LayerShapes:
    """The shapes of a model's layers."""
    products, of_sources = [], []
    for layer in model.layers:
        products.append(sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2))
        of_sources.append(traits_of(layer).input_aggregate is None)
    if model.output is not None:  # its rows are those that come out of the last layer
        products[-1] += model.output.weight.numel()
    return LayerShapes(model.widths, tuple(products), tuple(of_sources))


def minibatch_estimates(
    counted: Mapping[PlanVariant, StepWork],
    speeds: Speeds,
    steps: int,
    model: nn.Module,
    load: WorkerLoad,
    row_bytes: int,
    available_bytes: int,
) -> list[PlanEstimate]:
    """An estimate for each plan that was counted; `steps` in an epoch."""
    gradients = sum(weight.numel() for weight in model.parameters()) * 4 * 2 * (1 - 1 / load.workers)
    estimates = []
    for variant, work in counted.items():
        computing = _compute_seconds(
            2 * work.reads * speeds.read + 3 * work.products * speeds.multiply + work.drawing, speeds
        )
        in_step = (work.hidden + gradients) * speeds.byte
        ahead = (work.features + work.structure) * speeds.byte
        waits = work.rounds * speeds.latency
        seconds = torch.maximum(computing + in_step, in_step + ahead).max() + waits
        sent = float((work.hidden + work.features + work.structure).sum()) + gradients * load.workers
        macrobatches = int(2 * variant.macrobatch_size * float(work.rows.max()) * row_bytes)
        memory = load.rows * load.widths[0] * 4 + load.edges * 12 + macrobatches
        preset = {"independent": "minibatch", "macrobatch": "batchgnn", "split": "gsplit"}[variant.plan]
        sample = {
            "macrobatch": variant.macrobatch_size,
            "cache_aggregates": "always" if variant.cached else "never",
            "alone_hops": variant.alone_hops,
        }
        estimates.append(
            PlanEstimate(
                variant.label(), preset, {"sample": sample}, float(work.rows.sum()), float(work.remote.sum()),
                float(work.edges.sum()), sent * steps / 1e6, work.rounds, work.edge_balance, memory,
                float(seconds) * steps, memory <= available_bytes,
            )
        )  # fmt: skip
    return estimates


def full_graph_estimates(
    comm: Communicator,
    load: WorkerLoad,
    shapes: LayerShapes,
    speeds: Speeds,
    caches_input: bool,
    memory: MemoryConfig,
    available_bytes: int,
) -> list[PlanEstimate]:
    """The full graph, exchanged at once or block by block. `caches_input`: the input's aggregate is computed once."""
    layers = range(len(shapes.products))
    first = 1 if caches_input else 0
    reads = sum(load.edges * shapes.exchanged(layer) for layer in layers[first:])
    products = load.rows * sum(shapes.products)
    numbers = sum(shapes.exchanged(layer) for layer in layers[first:])
    mine = torch.tensor([load.rows, load.halo, load.edges, reads, products], dtype=torch.float64)
    rows, halo, edges, reads_all, products_all = comm.all_gather(mine, "control", "what plans take").T
    gradients = load.parameters * 4 * 2 * (1 - 1 / load.workers)
    estimates = []
    for name, recomputed in (("full", 0), ("sar", 1)):
        preset = PRESETS[name].settings
        exchange = ExchangeConfig(**preset.get("exchange", {}))
        kept = MemoryConfig(**{**memory.model_dump(), **preset.get("memory", {})})
        computing = _compute_seconds(
            (2 + recomputed) * reads_all * speeds.read + (3 + recomputed) * products_all * speeds.multiply, speeds
        )
        sent = (2 + recomputed * any(shapes.multiplies_sources)) * halo * numbers * load.itemsize + gradients
        seconds = computing + sent * speeds.byte
        need = torch.tensor([estimate_bytes(load, exchange, kept)], dtype=torch.int64)
        largest = int(comm.all_reduce(need, "control", "memory of plans", "max"))
        rounds = 2.0 * len(layers) * (1 if name == "full" else load.workers)
        estimates.append(
            PlanEstimate(
                name, name, {}, float((rows + halo).sum()), float(halo.sum()), float(edges.sum()) * len(layers),
                float(sent.sum()) / 1e6, rounds, float(edges.max() / edges.mean().clamp(min=1e-300)), largest,
                float(seconds.max()) + rounds * speeds.latency, largest <= available_bytes,
            )
        )  # fmt: skip
    return estimates


def _compute_seconds(computing: Tensor, speeds: Speeds) -> Tensor:
    """Seconds until each worker has computed, on cores of its own or on those that all share."""
    return torch.maximum(computing / speeds.sharing, computing.mean())


def best_of(estimates: list[PlanEstimate]) -> PlanEstimate:
    """The fastest plan of those that fit in memory; where none fits, the smallest."""
    fitting = [estimate for estimate in estimates if estimate.fits]
    if not fitting:
        return min(estimates, key=lambda estimate: estimate.memory_bytes)
    return min(fitting, key=lambda estimate: estimate.seconds)
