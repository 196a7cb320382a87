"""The whole way from edge files to part folders, taken by all workers together.

    count     the in-edges of every vertex, which says how to make blocks that fit into memory
    spill     every worker reads its slice of the edges and sends each to the block of its destination, on disk
    sort      blocks become rows, sources ascending; the graph's fingerprint is taken of them
    assign    an owner for every vertex: hash, range, or stream in several passes over the blocks
    cut       rows go to the parts of their vertices, local and remote edges apart
    rows      features, labels and masks go the same way

No step holds more of the graph than a block, a chunk of edges, or a few bytes per vertex (`Budget`).
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import UserError
from weft.external.blocks import Blocks, count_degrees, make_blocks
from weft.external.cut import Parts, Placement, place
from weft.external.fingerprint import Fingerprint, share_hex
from weft.external.job import Budget, Job, check_job
from weft.external.native import native
from weft.external.nodes import NodeFiles, RowFile, count_classes, declared_nodes, open_nodes, write_masks
from weft.external.owners import Stream, hash_owners, range_owners, stream_owners
from weft.external.source import EdgeFiles, open_edges
from weft.external.spill import Spill, sort_blocks, spill_edges
from weft.graph.files import Array, FolderWriter
from weft.partition.methods import Balance
from weft.partition.quality import PartCounts
from weft.partition.store import PartitionInfo, identity

SCRATCH = "scratch"  # within the folder that is being written


@dataclass(frozen=True)
class Division:
    """What was made, and how long each step took."""

    info: PartitionInfo
    seconds: dict[str, float]
    num_blocks: int


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


def check_inputs(job: Job) -> tuple[EdgeFiles, NodeFiles, int | None]:
    """Opens all files, which shows most mistakes in a moment; third, the number of vertices, if it is known."""
    native()
    check_job(job)
    files = open_nodes(job)
    num_nodes = declared_nodes(job, files)
    return open_edges(job, num_nodes), files, num_nodes


def divide(comm: Communicator, job: Job, folder: Path) -> Division:
    """Writes the part folders and position.npy into a folder that exists; every worker calls it.

    What remains is for the caller, who made the folder: `complete`.
    """
    edges, files, num_nodes = check_inputs(job)
    budget = Budget(job.memory_bytes, comm.num_workers, edges.weighted, job.undirected)
    if num_nodes is not None:
        budget.room(num_nodes)  # too little memory shows at once
    scratch = _make_scratch(comm, folder)
    steps = Steps(comm)

    with steps.step("count"):
        degrees = count_degrees(comm, edges, budget, num_nodes)
        if not degrees.any():
            raise UserError(f"{job.edges[0]} has no edges: nothing to train on")
        blocks = make_blocks(degrees, budget)
    spill = Spill(scratch, comm, edges.weighted)
    with steps.step("spill"):
        spill_edges(comm, edges, blocks, budget, spill)
    with steps.step("sort"):
        hashing = Fingerprint(comm, degrees.size, edges.weighted)
        sort_blocks(comm, blocks, spill, hashing)
        fingerprint = hashing.finish(degrees)
    with steps.step("assign"):
        num_classes = count_classes(comm, job, files.labels)
        masks = write_masks(comm, job, files.labels, degrees.size, scratch)
        owner = _assign(comm, job, blocks, degrees, spill, masks)
        del degrees
    with steps.step("place"):
        placement = place(comm, owner, job.parts, folder / "position.npy", scratch / "order.npy")
        partition_id = _identify(comm, fingerprint, placement)
    with ExitStack() as open_until:
        parts = Parts(comm, folder, placement, edges.weighted, open_until)
        with steps.step("cut"):
            parts.cut_blocks(blocks, spill)
        with steps.step("rows"):
            for file in (files.features, files.labels, *masks):
                if file is not None:
                    parts.deal_rows(file, budget)
        with steps.step("finish"):
            halo = parts.finish(partition_id)
            open_until.close()
            info = _describe(parts, halo, job, files, fingerprint, partition_id, num_classes)
    return Division(info, steps.seconds, blocks.borders.size - 1)


def complete(folder: FolderWriter, info: PartitionInfo) -> None:
    """What makes a partition of the folder into which `divide` has written."""
    shutil.rmtree(folder.temporary / SCRATCH)
    folder.adopt("position")
    folder.meta = info.model_dump(mode="json")


def _make_scratch(comm: Communicator, folder: Path) -> Path:
    if comm.worker == 0:
        (folder / SCRATCH).mkdir(exist_ok=True)
    comm.barrier("until there is room for blocks")
    return folder / SCRATCH


def _assign(comm: Communicator, job: Job, blocks: Blocks, degrees: Array, spill: Spill, masks: list[RowFile]) -> Array:
    if job.method == "hash" or job.parts == 1:
        return hash_owners(degrees.size, job.parts, job.seed)
    if job.method == "range":
        return range_owners(degrees, job.parts)
    train = next((mask for mask in masks if mask.name == "train_mask"), None)
    num_edges = int(degrees.sum(dtype=np.int64))
    return stream_owners(Stream(comm, blocks, num_edges, job.parts, train, Balance()), spill, job.passes)


def _identify(comm: Communicator, fingerprint: str, placement: Placement) -> str:
    """The partition's id, which worker 0 computes."""
    digits = "0" * len(fingerprint)
    if comm.worker == 0:
        starts = tuple(placement.starts.tolist())
        order = (ids for part in range(placement.num_parts) for ids in placement.members(part))
        digits = identity(fingerprint, starts, order)
    return share_hex(comm, digits, "the partition's id")


def _describe(
    parts: Parts,
    halo: dict[int, list[int]],
    job: Job,
    files: NodeFiles,
    fingerprint: str,
    partition_id: str,
    num_classes: int,
) -> PartitionInfo:
    """What all workers together have written."""
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
        method=job.method,
        seed=job.seed,
        num_nodes=sum(sizes),
        num_edges=int(counted[:, :2].sum()),
        num_features=files.num_features,
        num_classes=num_classes,
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
