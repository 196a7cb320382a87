"""Workers that cut edge files into parts together; `main` is what each of them does."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.comm import Communicator, broadcast_text, open_communicator
from weft.graph.files import FolderWriter
from weft.launch.launcher import launch
from weft.out_of_core import SCRATCH, Job, check_inputs, complete, partition_edges
from weft.partitioning import PartitionInfo
from weft.results import check_ending
from weft.training.machine import peak_rss_bytes

DEADLINE_SECONDS = 1800.0  # a worker may wait for another that writes a large part to a slow disk
JOB, RESULT = "job.json", "result.json"
NAME = "the folder's name"


@dataclass(frozen=True)
class Outcome:
    """A partition of edge files, and what it took."""

    info: PartitionInfo
    seconds: dict[str, float]  # by step
    peak_rss_bytes: list[int]  # by worker
    num_buckets: int


def partition_files(job: Job, out: Path, workers: int = 1, overwrite: bool = False) -> Outcome:
    """Writes a partition folder, whole or not at all. Under torchrun this process is one of the workers."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return partition_together(open_communicator(DEADLINE_SECONDS), job, out, overwrite)
    check_inputs(job)
    with FolderWriter(out, "partition", overwrite) as folder:
        # Also one worker is a process of its own: whatever ends it, this one removes what it has left.
        outcome = _launch(job, folder.temporary, workers)
        complete(folder, outcome.info)
    return outcome


def partition_together(comm: Communicator, job: Job, out: Path, overwrite: bool = False) -> Outcome:
    """The same by workers that run already, on hosts that all see `out`; every one of them calls it.

    Worker 0 makes the folder and tells the others its temporary name.
    """
    if comm.worker > 0:
        return _work(comm, job, Path(broadcast_text(comm, "", NAME)))
    with FolderWriter(out, "partition", overwrite) as folder:
        outcome = _work(comm, job, Path(broadcast_text(comm, str(folder.temporary.absolute()), NAME)))
        complete(folder, outcome.info)
    return outcome


def _work(comm: Communicator, job: Job, folder: Path) -> Outcome:
    made = partition_edges(comm, job, folder)
    peaks = comm.all_gather(torch.tensor([peak_rss_bytes()]), "control", "peaks of memory")
    return Outcome(made.info, made.seconds, peaks.flatten().tolist(), made.num_buckets)


def _launch(job: Job, folder: Path, workers: int) -> Outcome:
    scratch = folder / SCRATCH
    scratch.mkdir()
    (scratch / JOB).write_text(job.model_dump_json())
    check_ending(launch("weft.out_of_core.workers", [str(folder)], workers, deadline_seconds=DEADLINE_SECONDS))
    return _read(scratch / RESULT)


def _write(outcome: Outcome, path: Path) -> None:
    path.write_text(json.dumps({**vars(outcome), "info": outcome.info.model_dump(mode="json")}))


def _read(path: Path) -> Outcome:
    fields = json.loads(path.read_text())
    return Outcome(**{**fields, "info": PartitionInfo.model_validate(fields["info"])})


def main() -> None:
    folder = Path(sys.argv[1])
    job = Job.model_validate_json((folder / SCRATCH / JOB).read_text())
    comm = open_communicator(DEADLINE_SECONDS)
    outcome = _work(comm, job, folder)
    if comm.worker == 0:
        _write(outcome, folder / SCRATCH / RESULT)
    comm.close()
