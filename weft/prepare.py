"""From a data spec to what workers load: a partition folder, or a graph that one process opens whole."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.comm import Communicator
from weft.config import RunConfig
from weft.errors import UserError
from weft.graph import Graph, as_graph, open_graph, save_graph
from weft.graph import ingest as read_files
from weft.graph.files import MANIFEST, Array, check_own, read_manifest, remove_own
from weft.graph.ids import IdMap
from weft.graph.preparation import Preparation, read_preparation
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import Predicted, kind_of_labels
from weft.partitioning import (
    PartitionInfo,
    Shard,
    load_original_ids,
    load_shard,
    read_partition,
    whole_shard,
    write_partition,
)
from weft.partitioning.info import check_workers
from weft.partitioning.partitioners import Request, find_partitioner
from weft.partitioning.read import load_global_ids, predicted_of
from weft.sample import Presample, fanouts_for
from weft.training.given import digest, find_relation, find_reverses, read_given_edges
from weft.training.held_out import GivenEdges, HeldOut
from weft.training.labelled import LabelledEdges, read_labelled_edges
from weft.training.timed import sees_of

PARTS = "parts"


def ingest(source: str | Path, out: str | Path | None = None, overwrite: bool = False, **options: Any) -> Graph:
    """Reads a graph from your files, as the command `weft ingest` does; with `out` also into a graph folder.

    >>> _ = open("edges.csv", "w").write("from,to\\nann,bob\\nbob,eve\\n")
    >>> _ = open("nodes.csv", "w").write("id,age,label\\nann,31,a\\nbob,40,b\\neve,25,a\\n")
    >>> weft.ingest("edges.csv", features="nodes.csv", split="random:0.6,0.2@0", undirected=True, out="my-graph")
    Graph('edges': 3 vertices, 4 edges, 1 features, 2 classes, split train/val/test)

    Options are those of the command with _ for -: features, labels, split, src_column, dst_column, weight_column,
    relation_column, time_column, vertex_time_column, edge_features, id_column, label_columns, label_kind, split_column,
    header, num_nodes, num_classes, undirected, drop_duplicates, vertex_data, name.
    """
    if out is not None and os.path.lexists(out):  # before the long work
        if not overwrite:
            raise UserError(f"{out} exists already: remove it, choose another out=, or pass overwrite=True")
        check_own(Path(out), "graph")
    graph = read_files(source, **options)
    if out is not None:
        save_graph(graph, out, overwrite)
    return graph


def partition(
    graph: Graph | str | Path | Any,
    parts: int,
    out: Path | str,
    method: str = "auto",
    seed: int = 0,
    overwrite: bool = False,
    presample: Presample | None = None,
) -> PartitionInfo:
    """Cuts a graph into parts on disk, which workers load by themselves.

    >>> info = weft.partition("synthetic:tiny", parts=2, out="my-parts", method="random")
    >>> info.num_parts, info.num_nodes
    (2, 300)

    method: a registered one (`weft partition --help` lists them); auto takes METIS where it is installed.
    overwrite: a partition that lies at `out` may be replaced.
    presample: the minibatches that a method such as "presample" draws and counts; None: three epochs of its defaults.
    """
    opened = as_graph(graph)
    if os.path.lexists(out):  # before the long work
        if not overwrite:
            raise UserError(f"{out} exists already: remove it, choose another --out, or pass --overwrite")
        check_own(Path(out), "partition")
    partitioner = find_partitioner(method)
    owner, forecast = partitioner.run(opened, Request(parts, seed, minibatches=presample))
    return write_partition(opened, owner, out, parts, partitioner.name, seed, overwrite, forecast=forecast)


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


class Kept(NamedTuple):
    """What a run that goes on has been trained on."""

    data: str | None  # as its settings name it
    fingerprint: str | None  # of its graph; None: there is no checkpoint yet


def prepare_data(config: RunConfig, run: Path, kept: Kept | None = None) -> None:
    """Makes RUN/parts where several workers are to train on a graph that is not partitioned yet.

    With `kept` (a resumed run) parts of the same graph that lie there already are used, if there are enough of them,
    and another graph is refused before anything is changed.
    """
    path = run / PARTS
    parts = config.partition.parts or config.workers
    if parts < config.workers:
        raise UserError(f"partition.parts is {parts}, but {config.workers} workers need at least as many parts")
    if folder_kind(config.data) == "partition":
        info = read_partition(config.data)
        check_workers(config.data, config.workers, info.num_parts)
        _refuse_other(config, info.fingerprint, kept)
        return
    if kept is not None and _serves(path, config, kept):
        return
    if config.workers == 1 and config.partition.parts is None:
        remove_own(path, "partition")  # of a run that is done again
        return
    method = config.partition.method
    presample = own_minibatches(config) if find_partitioner(method).requires.minibatches else None
    graph = open_graph(config.data)
    _refuse_other(config, graph.fingerprint, kept)
    partition(graph, parts, path, method, config.seed, overwrite=True, presample=presample)


def _serves(parts: Path, config: RunConfig, kept: Kept) -> bool:
    """Whether parts lie there, enough of them, and of the graph that is to be trained on."""
    if folder_kind(parts) != "partition":
        return False
    info = read_partition(parts)
    if info.num_parts < config.workers:
        return False
    if folder_kind(config.data) == "graph":
        return bool(read_manifest(Path(config.data), "graph")["fingerprint"] == info.fingerprint)
    return config.data == kept.data or open_graph(config.data).fingerprint == info.fingerprint


def _refuse_other(config: RunConfig, fingerprint: str, kept: Kept | None) -> None:
    if kept is not None and kept.fingerprint not in (None, fingerprint):
        raise UserError(
            f"{config.data} is of another graph than the run's checkpoints: give it the graph that the run began with, "
            "or train under another --run"
        )


def own_minibatches(config: RunConfig) -> Presample:
    """The minibatches of a run's first epochs."""
    if config.train.task != "vertices":
        raise UserError(
            f"partition.method={config.partition.method} counts minibatches of training vertices, and "
            f"train.task={config.train.task} has minibatches of edges: use partition.method=metis"
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
    """What the user's files call vertices, classes and relations."""

    original_ids: Array | None  # [N] by global id; None: the global ids themselves
    class_names: tuple[str, ...] | None
    predicted: Predicted  # what labels say of a vertex
    relation_names: tuple[str, ...] | None
    num_nodes: int
    id_name: str = "id"  # what they call ids
    types: GraphTypes | None = None  # of vertices; None: they are all of one type

    def ids_within_types(self) -> Array:
        """The id of each vertex, [N], which vertices of other types may have too."""
        if self.original_ids is not None or self.types is None:
            return np.arange(self.num_nodes) if self.original_ids is None else self.original_ids
        return np.concatenate([np.arange(kind.count) for kind in self.types.vertices])

    def ids_of_all(self) -> Array:
        """Ids that name each vertex alone, [N]; where there are types, TYPE:ID."""
        ids = self.ids_within_types()
        if self.types is None:
            return ids
        named = [
            f"{kind.name}:{id}" for place, kind in enumerate(self.types.vertices) for id in ids[self.types.span(place)]
        ]
        return np.array(named)


def vertex_names(config: RunConfig, run: Path) -> VertexNames:
    parts = parts_folder(config, run)
    if parts is None:
        graph = open_graph(config.data)
        y, id_name = graph.y, graph.id_column or "id"
        predicted = "class" if y is None else kind_of_labels(y.is_floating_point(), y.dim())
        return VertexNames(
            graph.original_ids,
            graph.class_names,
            predicted,
            graph.relation_names,
            graph.num_nodes,
            id_name,
            graph.types,
        )
    ids, predicted = load_original_ids(parts, 0, 1), predicted_of(parts)
    if ids is not None:
        by_global_id = np.empty_like(ids)
        by_global_id[load_global_ids(parts)] = ids
        ids = by_global_id
    info = read_partition(parts)
    id_name = info.id_column or "id"
    return VertexNames(ids, info.class_names, predicted, info.relation_names, info.num_nodes, id_name, info.types)


def preparation_of(config: RunConfig, run: Path) -> Preparation | None:
    """How the features of a run's graph were made, where its data keep that."""
    parts = parts_folder(config, run)
    if parts is not None:
        return read_partition(parts).preparation
    if folder_kind(config.data) == "graph":
        return read_preparation(read_manifest(Path(config.data), "graph"), config.data, "make the graph again")
    return None


def hold_out(config: RunConfig, run: Path, shard: Shard, comm: Communicator) -> tuple[HeldOut, str | None]:
    """The edges that a run of train.task=links keeps from training; and a digest of those that files give."""
    link, timed = config.link, sees_of(config.train, shard) != "all"
    by_time = link.hold_out == "time" or (link.hold_out == "auto" and timed)
    files = {split: path for split, path in (("val", link.val_edges), ("test", link.test_edges)) if path is not None}
    if not files and link.relations is None:
        return HeldOut(shard, comm, link, config.seed, by_time=by_time, in_graph=by_time and timed), None
    names = vertex_names(config, run)
    ids = _id_map(names)
    relations, reverses = None, []
    if link.relations is not None:
        relations = [find_relation(name, shard.num_relations, names.relation_names) for name in link.relations]
        reverses = find_reverses(relations, names.relation_names, names.types)
    given = None
    if files:
        nothing = torch.empty(0, dtype=torch.int64)
        given = {split: GivenEdges(nothing, nothing, nothing) for split in ("val", "test")}
        for split, path in files.items():
            given[split] = read_given_edges(Path(path), ids, shard.num_relations, names.relation_names, timed)
    held_out = HeldOut(
        shard,
        comm,
        link,
        config.seed,
        given,
        relations,
        reverses,
        by_time,
        in_graph=by_time and timed and given is None,
    )
    return held_out, None if given is None else digest(given)


def labelled_edges(config: RunConfig, run: Path, timed: bool = False) -> LabelledEdges:
    """The edges whose labels a run of train.task=edges learns. `timed`: they must have times."""
    return read_labelled_edges(config.edge, _id_map(vertex_names(config, run)), config.seed, timed)


def _id_map(names: VertexNames) -> IdMap:
    return IdMap(names.ids_of_all(), "the graph's ids" if names.types is None else "the graph's ids, TYPE:ID")
