"""A run as a scheduler is to start it: how many hosts, what each needs, and the settings that go with it.

The settings travel inside the script or the manifests. So a file of settings that is changed later changes no run that
is queued, and other hosts need not see it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from weft.config import RunConfig, make_config, merge
from weft.errors import UserError
from weft.estimate.hosts import host_bytes
from weft.graph.datasets import PYG_PREFIX, data_folder, known_names
from weft.graph.synthetic import PREFIX
from weft.out_of_core import parse_bytes
from weft.partitioning.info import check_workers, read_partition
from weft.prepare import folder_kind

THREADS = 4  # of a worker, unless something says how many
MEETING_SECONDS = 120  # that a run has for its checkpoint, from the first signal to the last
SHUTDOWN_SECONDS = MEETING_SECONDS - 20  # that torchrun gives its workers of these
LONGEST_NAME = 40  # of 63 characters that the name of a pod may have: Kubernetes adds to it

_TIMES = (  # as Slurm writes them, and with units
    re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?"),
    re.compile(r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?"),
)
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True)
class Hosts:
    """What was asked for of the hosts; None: as the config says, or as is estimated."""

    count: int = 1
    workers_each: int | None = None
    threads: int | None = None
    memory: str | None = None  # of each, as 24G


@dataclass(frozen=True)
class ClusterJob:
    """A run, ready to be described to a scheduler."""

    name: str
    run: str  # folder, absolute
    data: str
    settings: str  # YAML, all that `weft train` needs to know
    hosts: int
    workers_each: int
    threads: int
    memory_bytes: int  # of each host
    gpus_each: int

    @property
    def memory_mib(self) -> int:
        return -(-self.memory_bytes // (1 << 20))

    def torchrun(self) -> list[str]:
        """The words with which each host starts its workers, but for where they meet and which host it is."""
        words = ["torchrun", f"--nnodes={self.hosts}", f"--nproc-per-node={self.workers_each}"]
        return [*words, f"--shutdown-timeout={SHUTDOWN_SECONDS}"]

    def variables(self) -> dict[str, str]:
        """Of every worker's environment."""
        return {"OMP_NUM_THREADS": str(self.threads), "THP_MEM_ALLOC_ENABLE": "1"}


def plan_job(settings: Mapping[str, Any], hosts: Hosts, name: str | None = None) -> ClusterJob:
    """What a scheduler is to start; everything that can be wrong with it is found here, before anything is queued."""
    config = make_config(settings)
    workers_each = hosts.workers_each or _share(config.workers, hosts.count)
    threads = hosts.threads or config.threads or THREADS
    settings = merge(settings, {"workers": workers_each * hosts.count, "threads": threads})
    config = make_config(settings)
    if config.run is None:
        raise UserError("a run on other machines needs a folder that all of them see: give --run DIR")
    _check_paths(config)
    memory_bytes = _memory(config, workers_each, hosts.memory)
    return ClusterJob(
        name=_name(name or f"weft-{Path(config.run).name}"),
        run=config.run,
        data=config.data,
        settings=yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True),
        hosts=hosts.count,
        workers_each=workers_each,
        threads=threads,
        memory_bytes=memory_bytes,
        gpus_each=workers_each if config.device == "cuda" else 0,
    )


def seconds_of(time: str) -> int:
    """Seconds of a time limit: 04:00:00, 1-12:00:00, 90m, 4h, 2d."""
    for form in _TIMES:
        found = form.fullmatch(time.strip())
        if found is not None and any(found.groupdict().values()):
            return sum(_UNITS[unit] * int(number) for unit, number in found.groupdict().items() if number)
    raise UserError(f"'{time}' is no time limit: write it as 04:00:00, 1-12:00:00, 90m or 4h")


def _share(workers: int, hosts: int) -> int:
    if workers % hosts:
        raise UserError(
            f"{workers} workers cannot be shared out evenly over {hosts} nodes: set workers to a multiple of {hosts}, "
            "or give --workers-per-node"
        )
    return workers // hosts


def _memory(config: RunConfig, workers_each: int, given: str | None) -> int:
    """Bytes of each host: those that were given, or an estimate. More workers than parts are refused either way."""
    parts = Path(config.data)
    cut = folder_kind(parts) == "partition"
    if not cut and (config.partition.parts or config.workers) < config.workers:
        raise UserError(
            f"partition.parts is {config.partition.parts}, but {config.workers} workers need at least as many parts"
        )
    if given is not None:
        if cut:
            check_workers(parts, config.workers, read_partition(parts).num_parts)
        return parse_bytes(given)
    if not cut:
        raise UserError(
            f"{config.data} is no partition that lies here, so that the memory of a worker cannot be estimated: give "
            "--memory, what each node needs (such as 64G), or partition it first (weft partition)"
        )
    return host_bytes(config, parts, workers_each)


def _check_paths(config: RunConfig) -> None:
    """Refuses paths by which another machine would find something else, or nothing."""
    for key, path in _paths(config):
        if any(ord(character) < 32 for character in path):
            raise UserError(f"{key} is {path!r}, which a script cannot name: use a path without control characters")
        if not os.path.isabs(path):
            raise UserError(
                f"{key} is {path}, which every machine looks for where it happens to start: give the whole path on a "
                f"file system that all of them see (here it is {Path(path).absolute()})"
            )


def _paths(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and value of every setting of the run that is a path."""
    assert config.run is not None
    yield "run", config.run
    if not is_data_set(config.data):
        yield "data", config.data
    given = {
        "link.val_edges": config.link.val_edges,
        "link.test_edges": config.link.test_edges,
        "edge.labels": config.edge.labels,
        "executor.prices": config.executor.prices,
    }
    yield from ((key, path) for key, path in given.items() if path is not None)


def is_data_set(data: str) -> bool:
    """Whether a run's data are named, and not where something lies."""
    if os.path.exists(data):
        return False
    return data.startswith((PREFIX, PYG_PREFIX)) or data in known_names() or (data_folder() / data).is_dir()


def _name(text: str) -> str:
    """A name as Kubernetes and Slurm take it: letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_NAME].strip("-")
    if not name or not name[0].isalpha():
        raise UserError(f"'{text}' makes no name of a job: give --name, of letters, digits and dashes")
    return name
