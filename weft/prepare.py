"""From a data spec to what workers load: a partition folder, or a graph that one process opens whole."""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.comm import Communicator
from weft.config import RunConfig
from weft.errors import UserError
from weft.graph import Graph, open_graph
from weft.graph.files import MANIFEST, Array, read_manifest
from weft.partition import (
    PartitionInfo,
    Shard,
    load_original_ids,
    load_shard,
    read_partition,
    whole_shard,
    write_partition,
)
from weft.partition.methods import PRESAMPLE, assign, choose_method
from weft.partition.store import check_workers, has_several_labels, load_global_ids
from weft.sample import Presample, fanouts_for, presampled

PARTS = "parts"


def partition(
    graph: Graph | str,
    parts: int,
    out: Path | str,
    method: str = "auto",
    seed: int = 0,
    overwrite: bool = False,
    presample: Presample | None = None,
) -> PartitionInfo:
    """Cuts a graph into parts on disk, which workers load by themselves.

    presample: the minibatches that method "presample" draws and counts; None: three epochs of its defaults.
    """
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    if Path(out).exists() and not overwrite:  # before the long work
        raise UserError(f"{out} exists already: remove it, choose another --out, or pass --overwrite")
    method = choose_method(method)
    if method == PRESAMPLE:
        owner, forecast = presampled(opened, parts, seed, presample)
        return write_partition(opened, owner, out, parts, method, seed, overwrite, forecast=forecast)
    owner = assign(opened, parts, method, seed)
    return write_partition(opened, owner, out, parts, method, seed, overwrite)


def folder_kind(path: Path | str) -> str | None:
    """What kind of weft folder a path is: graph, partition, or None."""
    if not (Path(path) / MANIFEST).is_file():
        return None
    for kind in ("graph", "partition"):
        try:
            read_manifest(Path(path), kind)
        except UserError:
            continue
        return kind
    return None


def prepare_data(config: RunConfig, run: Path, reuse: bool = False) -> None:
    """Makes RUN/parts where several workers are to train on a graph that is not partitioned yet.

    With `reuse` (a resumed run) parts that lie there already are kept, if there are enough of them.
    """
    path = run / PARTS
    parts = config.partition.parts or config.workers
    if parts < config.workers:
        raise UserError(f"partition.parts is {parts}, but {config.workers} workers need at least as many parts")
    if folder_kind(config.data) == "partition":
        check_workers(config.data, config.workers, read_partition(config.data).num_parts)
        return
    if reuse and folder_kind(path) == "partition" and read_partition(path).num_parts >= config.workers:
        return
    if config.workers == 1 and config.partition.parts is None:
        shutil.rmtree(path, ignore_errors=True)  # of a run that is done again
        return
    method = config.partition.method
    presample = own_minibatches(config) if method == PRESAMPLE else None
    partition(config.data, parts, path, method, config.seed, overwrite=True, presample=presample)


def own_minibatches(config: RunConfig) -> Presample:
    """The minibatches of a run's first epochs."""
    if config.train.task == "links":
        raise UserError(
            "partition.method=presample counts minibatches of training vertices, and train.task=links has minibatches "
            "of edges: use partition.method=metis"
        )
    return Presample(
        epochs=config.partition.presample_epochs,
        batch=config.sample.batch,
        fanouts=fanouts_for(config.sample, config.model.layers),
        method=config.sample.method,
        split=config.train.split,
    )


def parts_folder(config: RunConfig, run: Path) -> Path | None:
    """Where the parts of a run lie; None: one worker opens the graph itself."""
    if folder_kind(config.data) == "partition":
        return Path(config.data)
    own = run / PARTS
    return own if folder_kind(own) == "partition" else None


def parts_per_worker(config: RunConfig, run: Path) -> int:
    """How many parts a worker holds at most."""
    parts = parts_folder(config, run)
    return 1 if parts is None else -(-read_partition(parts).num_parts // config.workers)


def open_shard(config: RunConfig, run: Path, comm: Communicator) -> Shard:
    """This worker's shard."""
    parts = parts_folder(config, run)
    if parts is not None:
        return load_shard(parts, comm.worker, comm.num_workers)
    if comm.num_workers > 1:
        raise UserError(
            f"{config.data} is not partitioned and {run / PARTS} is not here: partition it first "
            f"(weft partition {config.data} --parts {comm.num_workers} --out PARTS), copy PARTS to every host, "
            "and train with --data PARTS"
        )
    return whole_shard(open_graph(config.data))


class VertexNames(NamedTuple):
    """What the user's files call vertices and classes."""

    original_ids: Array | None  # [N] by global id; None: the global ids themselves
    class_names: tuple[str, ...] | None
    multi_label: bool


def vertex_names(config: RunConfig, run: Path) -> VertexNames:
    parts = parts_folder(config, run)
    if parts is None:
        graph = open_graph(config.data)
        return VertexNames(graph.original_ids, graph.class_names, graph.multi_label)
    ids, multi_label = load_original_ids(parts, 0, 1), has_several_labels(parts)
    if ids is not None:
        by_global_id = np.empty_like(ids)
        by_global_id[load_global_ids(parts)] = ids
        ids = by_global_id
    return VertexNames(ids, read_partition(parts).class_names, multi_label)
