"""The whole way from edge files to part folders, taken by all workers together.

    prepare   features, labels and splits of a table become npy files, where a table is given
    count     the in-edges of every vertex, which says how to make buckets that fit into memory
    spill     every worker reads its slice of the edges and sends each to the bucket of its destination, on disk
    sort      buckets become rows, sources ascending; the graph's fingerprint is taken of them
    assign    an owner for every vertex, by the method asked for
    place     the position of every vertex in its part
    cut       rows go to the parts of their vertices, local and remote edges apart
    rows      vertex data (features, labels, masks, further columns) go the same way
    finish    halos and metadata

No step holds more of the graph than a bucket, a chunk of edges, or a few bytes per vertex (`Budget`).
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from weft.comm import Communicator, broadcast_text
from weft.errors import UserError
from weft.graph.files import Array, FolderWriter
from weft.out_of_core.buckets import make_buckets
from weft.out_of_core.budget import Budget
from weft.out_of_core.degrees import count_degrees
from weft.out_of_core.edgefiles import EdgeFiles, open_edges
from weft.out_of_core.fingerprint import Fingerprint
from weft.out_of_core.job import Job, check_job
from weft.out_of_core.native import native
from weft.out_of_core.owners import SpilledGraph
from weft.out_of_core.parts import Parts
from weft.out_of_core.placement import Placement, place
from weft.out_of_core.spill import Spill, sort_buckets, spill_edges
from weft.out_of_core.splits import check_split, write_masks
from weft.out_of_core.tables import Prepared, is_table, open_source, prepare_table
from weft.out_of_core.vertexfiles import VertexFile, count_classes, declared_nodes, open_vertex_files
from weft.partitioning.info import PartitionInfo, partition_id_of
from weft.partitioning.partitioners import Request, find_partitioner
from weft.partitioning.quality import PartCounts
from weft.partitioning.shard import check_owner

SCRATCH = "scratch"  # within the folder that is being written


@dataclass(frozen=True)
class Partitioned:
    """What was made, and how long each step took."""

    info: PartitionInfo
    seconds: dict[str, float]
    num_buckets: int


@dataclass
class Steps:
    """Names the step that a worker is at, and measures it."""

    comm: Communicator
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.comm.step = f"partitioning, step {name}"
        started = time.perf_counter()
        yield
        self.comm.barrier(f"after step {name}")
        self.seconds[name] = time.perf_counter() - started


def check_inputs(job: Job) -> tuple[EdgeFiles, dict[str, VertexFile], int | None]:
    """Opens all files, which shows most mistakes in a moment; third, the number of vertices, if it is known."""
    native()
    check_job(job)
    files = {}
    if is_table(job.features):  # npy files are made of it, and checked then
        open_source(job)
    else:
        files = open_vertex_files(job)
    if job.split is not None:
        check_split(job.split)
    num_nodes = declared_nodes(job, files)
    return open_edges(job, num_nodes), files, num_nodes


def partition_edges(comm: Communicator, job: Job, folder: Path) -> Partitioned:
    """Writes the part folders and position.npy into a folder that exists; every worker calls it.

    What remains is for the caller, who made the folder: `complete`.
    """
    check_inputs(job)
    scratch = _make_scratch(comm, folder)
    steps = Steps(comm)

    with steps.step("prepare"):
        prepared = prepare_table(comm, job, scratch)
        job = prepared.job
    edges, files, num_nodes = check_inputs(job)
    budget = Budget(job.memory_bytes, comm.num_workers, edges.carried, job.undirected)
    if num_nodes is not None:
        budget.room(num_nodes)  # too little memory shows at once
    with steps.step("count"):
        degrees = count_degrees(comm, edges, budget, num_nodes)
        if not degrees.any():
            raise UserError(f"{job.edges[0]} has no edges: nothing to train on")
        buckets = make_buckets(degrees, budget)
    spill = Spill(scratch, comm, edges.carried)
    with steps.step("spill"):
        spill_edges(comm, edges, buckets, budget, spill)
    with steps.step("sort"):
        hashing = Fingerprint(comm, degrees.size, edges.carried)
        sort_buckets(comm, buckets, spill, hashing)
        fingerprint = hashing.finish(degrees)
    with steps.step("assign"):
        num_classes = count_classes(comm, job, files.get("y"))
        files |= write_masks(comm, job, files, degrees.size, scratch)
        owner = _assign(SpilledGraph(comm, buckets, degrees, spill, files.get("train_mask"), job.passes), job)
        del degrees
    with steps.step("place"):
        placement = place(comm, owner, job.parts, folder / "position.npy", scratch / "order.npy")
        partition_id = _identify(comm, fingerprint, placement)
    with ExitStack() as open_until:
        parts = Parts(comm, folder, placement, edges.carried, open_until)
        with steps.step("cut"):
            parts.cut_buckets(buckets, spill)
        with steps.step("rows"):
            for file in files.values():
                parts.send_rows(file, budget)
        with steps.step("finish"):
            halo = parts.finish(partition_id)
            num_features = files["x"].shape[1] if "x" in files else 0
            open_until.close()
            info = _describe(parts, halo, prepared, num_features, fingerprint, partition_id, num_classes)
    return Partitioned(info, steps.seconds, buckets.borders.size - 1)


def complete(folder: FolderWriter, info: PartitionInfo) -> None:
    """What makes a partition of the folder into which `partition_edges` has written."""
    shutil.rmtree(folder.temporary / SCRATCH)
    folder.adopt("position")
    folder.meta = info.model_dump(mode="json")


def _make_scratch(comm: Communicator, folder: Path) -> Path:
    if comm.worker == 0:
        (folder / SCRATCH).mkdir(exist_ok=True)
    comm.barrier("until there is room for buckets")
    return folder / SCRATCH


def _assign(graph: SpilledGraph, job: Job) -> Array:
    """int16 [N]"""
    if job.parts == 1:
        return np.zeros(graph.degrees.size, np.int16)
    owner = find_partitioner(job.method, whole_graph=False).assign(graph, Request(job.parts, job.seed)).owner
    check_owner(owner, graph.degrees.size, job.parts)
    return owner.to(torch.int16).numpy()


def _identify(comm: Communicator, fingerprint: str, placement: Placement) -> str:
    """The partition's id, which worker 0 computes."""
    digits = "0" * len(fingerprint)
    if comm.worker == 0:
        starts = tuple(placement.starts.tolist())
        order = (ids for part in range(placement.num_parts) for ids in placement.members(part))
        digits = partition_id_of(fingerprint, starts, order)
    return broadcast_text(comm, digits, "the partition's id")


def _describe(
    parts: Parts,
    halo: dict[int, list[int]],
    prepared: Prepared,
    num_features: int,
    fingerprint: str,
    partition_id: str,
    num_classes: int,
) -> PartitionInfo:
    """What all workers together have written."""
    job, names = prepared.job, prepared.class_names
    if names is not None and job.label_kind == "classes" and len(names) != num_classes:
        raise UserError(f"there are {len(names)} names of classes for {num_classes} classes: leave --num-classes out")
    comm, num_parts = parts.comm, job.parts
    counted = torch.zeros(num_parts, 3, dtype=torch.int64)  # local edges, remote edges, training vertices
    needed = torch.zeros(num_parts, num_parts, dtype=torch.int64)
    digests = torch.zeros(num_parts, 32, dtype=torch.int64)
    for file in parts.files:
        counted[file.part] = torch.tensor([*file.num_edges, file.num_train])
        needed[file.part] = torch.tensor(halo[file.part])
    for part, digest in parts.manifest_digests().items():
        digests[part] = torch.tensor(list(bytes.fromhex(digest)))
    for table in (counted, needed, digests):
        comm.all_reduce(table, "control", "what parts hold")
    sizes = np.diff(parts.placement.starts).tolist()
    return PartitionInfo(
        partition_id=partition_id,
        graph_name=job.name,
        fingerprint=fingerprint,
        method=find_partitioner(job.method, whole_graph=False).name,
        seed=job.seed,
        num_nodes=sum(sizes),
        num_edges=int(counted[:, :2].sum()),
        num_features=num_features,
        num_classes=num_classes,
        class_names=names,
        preparation=prepared.preparation,
        parts=tuple(
            PartCounts(
                nodes=sizes[part],
                edges=int(counted[part, :2].sum()),
                cut_edges=int(counted[part, 1]),
                halo=int(needed[part].sum()),
                sent=int(needed[:, part].sum()),
                train=int(counted[part, 2]),
            )
            for part in range(num_parts)
        ),
        part_manifests=tuple(bytes(digest).hex() for digest in digests.tolist()),
    )
