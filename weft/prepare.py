"""From a data spec to what workers load: a partition folder, or a graph that one process opens whole."""

from pathlib import Path

from weft.comm import Communicator
from weft.config import RunConfig
from weft.errors import UserError
from weft.graph import Graph, open_graph
from weft.graph.files import MANIFEST, read_manifest
from weft.partition import Shard, assign, load_shard, read_partition, whole_shard, write_partition
from weft.partition.store import check_workers

PARTS = "parts"


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


def prepare_data(config: RunConfig, run: Path, graph: Graph | None = None) -> None:
    """Makes RUN/parts where several workers are to train on a graph that is not partitioned yet."""
    if folder_kind(config.data) == "partition" and graph is None:
        check_workers(config.data, config.workers, read_partition(config.data).num_parts)
        return
    parts = config.partition.parts or config.workers
    if parts < config.workers:
        raise UserError(f"partition.parts is {parts}, but {config.workers} workers need at least as many parts")
    if config.workers == 1 and config.partition.parts is None:
        return
    path = run / PARTS
    if folder_kind(path) == "partition" and read_partition(path).num_parts >= config.workers:
        return  # a resumed run goes on with its own parts
    graph = graph or open_graph(config.data)
    owner = assign(graph, parts, config.partition.method, seed=config.seed)
    write_partition(graph, owner, path, method=config.partition.method, seed=config.seed, overwrite=True)


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
