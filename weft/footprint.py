"""How much memory a worker will need, how much there is, and what to say when one exceeds the other."""

import math
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import UserError
from weft.strategy import ExchangeConfig, MemoryConfig
from weft.train.machine import memory_bytes

GIB = 1 << 30
BASE_BYTES = 350 << 20  # the interpreter, torch and its libraries
# Address space that a process reserves without using it: libraries, thread stacks, arenas.
RESERVED_BYTES = 900 << 20
_ATTENTION = ("gat", "gatv2", "transformer")


@dataclass(frozen=True)
class Load:
    """What one worker holds of the graph and the model."""

    rows: int
    halo: int
    edges: int
    widths: tuple[int, ...]  # input, then what comes out of each layer
    itemsize: int
    workers: int
    model: str
    parameters: int = 0  # numbers that every worker holds alike
    relations: int = 0  # kinds of edges, each of which has an aggregate of its own


def estimate_bytes(load: Load, exchange: ExchangeConfig, memory: MemoryConfig) -> int:
    """Bytes that the worker's rows, edges and messages take at the peak of an epoch. An estimate: layers differ.

    Per layer one matrix is its aggregate, and without rematerialisation about two more are kept for the backward
    pass. Attention and maxima keep (materialised) the halo they read, or fetch it again (sequential).
    """
    hidden = load.widths[1:]
    widest = max(hidden)
    reads_again = load.model in _ATTENTION
    kept = sum(hidden) * (1 if memory.rematerialise else 3) + load.widths[0]
    at_work = 4 * widest
    if load.model == "rgcn":
        kept += load.relations * sum(load.widths[:-1])
        at_work += load.relations * max(load.widths[:-1])
    own = load.rows * (kept + at_work) * load.itemsize
    edges = load.edges * (16 if reads_again else 8) + load.rows * 16
    if exchange.schedule == "sequential":
        block = load.halo / max(1, load.workers - 1) / exchange.blocks
        moving = 2 * (exchange.prefetch + 1) * block * widest * load.itemsize
    else:
        layers_kept = sum(hidden) if reads_again else widest
        moving = load.halo * (layers_kept + 2 * widest) * load.itemsize
    # each parameter, its gradient, the optimiser's two moments, and the best so far
    return BASE_BYTES + own + edges + int(moving) + load.halo * 24 + 5 * load.parameters * load.itemsize


@dataclass(frozen=True)
class Limit:
    """The least of what this process may use."""

    num_bytes: int
    source: str


def memory_limit(local_workers: int) -> Limit:
    """The memory that one of several workers on this machine can count on."""
    limits = [Limit(memory_bytes() // max(1, local_workers), "the machine's memory, shared by its workers")]
    group = _cgroup_bytes()
    if group is not None:
        limits.append(Limit(group // max(1, local_workers), "the control group's limit, shared by its workers"))
    for name, option, spare in (("RLIMIT_AS", "v", RESERVED_BYTES), ("RLIMIT_DATA", "d", 0)):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            limits.append(Limit(max(0, soft - spare), f"ulimit -{option}"))
    return min(limits, key=lambda limit: limit.num_bytes)


def refuse_if_too_large(load: Load, exchange: ExchangeConfig, memory: MemoryConfig, local_workers: int) -> None:
    """At the start of a run: one sentence instead of a process that dies."""
    limit = memory_limit(local_workers)
    need = estimate_bytes(load, exchange, memory)
    if memory.check and need > limit.num_bytes:
        raise UserError(
            f"schedule {exchange.schedule} needs about {_gib(need)} in each of {load.workers} worker(s), but "
            f"{limit.source} leaves {_gib(limit.num_bytes)}: {_advice(load, exchange, memory)} "
            "(memory.check=false tries all the same)"
        )


def explain_failure(error: BaseException, load: Load, exchange: ExchangeConfig, memory: MemoryConfig) -> UserError:
    """For an allocation that failed after all."""
    need = estimate_bytes(load, exchange, memory)
    return UserError(
        f"memory ran out: schedule {exchange.schedule} needs about {_gib(need)} in each of {load.workers} worker(s): "
        f"{_advice(load, exchange, memory)} ({str(error).splitlines()[0][:200]})"
    )


_NO_MEMORY = ("can't allocate memory", "bad_alloc", "can't start new thread")  # a thread's stack is memory, too


def ran_out(error: BaseException) -> bool:
    """Whether an error is a failed allocation, whoever reports it."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == 12
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)


def _advice(load: Load, exchange: ExchangeConfig, memory: MemoryConfig) -> str:
    advice = []
    if exchange.schedule != "sequential" or not memory.rematerialise:
        thrifty = exchange.model_copy(update={"schedule": "sequential"})
        less = estimate_bytes(load, thrifty, memory.model_copy(update={"rematerialise": True}))
        advice.append(f"schedule sequential (--strategy sar) needs about {_gib(less)}")
    advice.append("more workers need less each")
    if load.workers == 1:
        advice.append("--strategy sar with partition.parts above 1 keeps rows in files")
    return ", ".join(advice)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB / 10 else f"{math.ceil(num_bytes / (1 << 20))} MiB"


def _cgroup_bytes() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            value = int(Path(path).read_text())
            return value if value < 1 << 60 else None
    return None
