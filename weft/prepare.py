"""From a data spec to what workers load: a partition folder, or a graph that one process opens whole."""

import shutil
from pathlib import Path

from weft.comm import Communicator
from weft.config import RunConfig
from weft.errors import UserError
from weft.graph import Graph, open_graph
from weft.graph.files import MANIFEST, read_manifest
from weft.partition import PartitionInfo, Shard, load_shard, read_partition, whole_shard, write_partition
from weft.partition.methods import assign
from weft.partition.store import check_workers

PARTS = "parts"


def partition(
    graph: Graph | str, parts: int, out: Path | str, method: str = "auto", seed: int = 0, overwrite: bool = False
) -> PartitionInfo:
    """Cuts a graph into parts on disk, which workers load by themselves."""
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    if Path(out).exists() and not overwrite:  # before the long work
        raise UserError(f"{out} exists already: remove it, choose another --out, or pass --overwrite")
    owner = assign(opened, parts, method, seed=seed)
    write_partition(opened, owner, out, method=method, seed=seed, overwrite=overwrite)
    return read_partition(out)


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


def prepare_data(config: RunConfig, run: Path, graph: Graph | None = None, reuse: bool = False) -> None:
    """Makes RUN/parts where several workers are to train on a graph that is not partitioned yet.

    With `reuse` (a resumed run) parts that lie there already are kept, if there are enough of them.
    """
    path = run / PARTS
    if path.exists() and not reuse:
        shutil.rmtree(path)
    if folder_kind(config.data) == "partition" and graph is None:
        check_workers(config.data, config.workers, read_partition(config.data).num_parts)
        return
    parts = config.partition.parts or config.workers
    if parts < config.workers:
        raise UserError(f"partition.parts is {parts}, but {config.workers} workers need at least as many parts")
    if config.workers == 1 and config.partition.parts is None:
        return
    if folder_kind(path) == "partition" and read_partition(path).num_parts >= config.workers:
        return
    partition(graph or config.data, parts, path, config.partition.method, config.seed, overwrite=True)


def parts_folder(config: RunConfig, run: Path) -> Path | None:
    """Where the parts of a run lie; None: one worker opens the graph itself."""
    if folder_kind(config.data) == "partition":
        return Path(config.data)
    own = run / PARTS
    return own if folder_kind(own) == "partition" else None


def open_shard(config: RunConfig, run: Path, comm: Communicator, graph: Graph | None = None) -> Shard:
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
    return whole_shard(graph or open_graph(config.data))
