"""Partitions of edge files made by one worker or several, and beside them the same made in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.workers import run_workers
from weft.comm import Communicator
from weft.graph.files import FolderWriter, read_manifest
from weft.graph.graph import Graph
from weft.out_of_core import Job, Partitioned, complete, partition_edges
from weft.partitioning import PartitionInfo, read_owner, write_partition
from weft.partitioning.info import part_name

Edges = list[tuple[int, int]]


def cut_files(out: Path, workers: int, **settings: Any) -> PartitionInfo:
    """A partition folder of edge files, made by so many workers; an earlier one is replaced."""
    return cut(out, workers, **settings).info


def cut(out: Path, workers: int, **settings: Any) -> Partitioned:
    job = Job(**settings)
    with FolderWriter(out, "partition", overwrite=True) as folder:
        if workers == 1:
            made = partition_edges(Communicator.alone(), job, folder.temporary)
        else:
            made = run_workers(_partition, workers, job.model_dump_json(), str(folder.temporary))[0]
        complete(folder, made.info)
    return made


def _partition(comm: Communicator, job: str, folder: str) -> Partitioned:
    return partition_edges(comm, Job.model_validate_json(job), Path(folder))


def save_edges(path: Path, edges: Edges, dtype: Any = np.int32) -> Path:
    np.save(path, np.array(edges, dtype).reshape(-1, 2).T)
    return path


def same_as_in_memory(parts: Path, graph: Graph, folder: Path) -> None:
    """Every array of every part has the same bytes as when the graph is cut in memory, to the same owners."""
    info = PartitionInfo.model_validate(read_manifest(parts, "partition"))
    owner = read_owner(parts)
    expected = write_partition(graph, owner, folder, info.num_parts, info.method, info.seed, True, reorder=False)
    same_folders(parts, folder)
    assert info.quality == expected.quality
    assert info == expected.model_copy(update={"part_manifests": info.part_manifests})


def same_folders(one: Path, two: Path) -> None:
    first, second = read_manifest(one, "partition"), read_manifest(two, "partition")
    assert first["partition_id"] == second["partition_id"] and first["arrays"] == second["arrays"]
    for part in range(len(first["parts"])):
        mine, other = (read_manifest(folder / part_name(part), "part") for folder in (one, two))
        assert mine["arrays"] == other["arrays"]
        assert {**mine, "arrays": None} == {**other, "arrays": None}


def node_files(folder: Path, num_nodes: int) -> dict[str, Path]:
    """Features and labels, some of them unknown."""
    generator = torch.Generator().manual_seed(num_nodes)
    np.save(folder / "x.npy", torch.randn(num_nodes, 3, generator=generator).numpy())
    labels = torch.randint(-1, 4, (num_nodes,), generator=generator)
    labels[0] = 3
    np.save(folder / "y.npy", labels.numpy())
    return {"features": folder / "x.npy", "labels": folder / "y.npy"}
