"""Edge files cut into parts by worker processes, of which none holds the graph; `python -m weft.divide` is a worker."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.comm import Communicator, open_communicator, run_worker
from weft.external import SCRATCH, Job, check_inputs, complete, divide
from weft.graph.files import FolderWriter
from weft.launch import launch
from weft.partition import PartitionInfo
from weft.run import RunFailed
from weft.train.machine import peak_rss_bytes

DEADLINE_SECONDS = 1800.0  # a worker may wait for another that writes a large part to a slow disk
JOB, RESULT = "job.json", "result.json"


@dataclass(frozen=True)
class Outcome:
    """A partition of edge files, and what it took."""

    info: PartitionInfo
    seconds: dict[str, float]  # by step
    peak_rss_bytes: list[int]  # by worker
    num_blocks: int


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
        return _work(comm, job, Path(_share_text(comm, "")))
    with FolderWriter(out, "partition", overwrite) as folder:
        outcome = _work(comm, job, Path(_share_text(comm, str(folder.temporary.absolute()))))
        complete(folder, outcome.info)
    return outcome


def _work(comm: Communicator, job: Job, folder: Path) -> Outcome:
    division = divide(comm, job, folder)
    peaks = comm.all_gather(torch.tensor([peak_rss_bytes()]), "control", "peaks of memory")
    return Outcome(division.info, division.seconds, peaks.flatten().tolist(), division.num_blocks)


def _launch(job: Job, folder: Path, workers: int) -> Outcome:
    scratch = folder / SCRATCH
    scratch.mkdir()
    (scratch / JOB).write_text(job.model_dump_json())
    code = launch("weft.divide", [str(folder)], workers, deadline_seconds=DEADLINE_SECONDS)
    if code:
        raise RunFailed(code)
    return _read(scratch / RESULT)


def _share_text(comm: Communicator, text: str) -> str:
    """Worker 0's text, at every worker."""
    data = text.encode()
    size = comm.broadcast(torch.tensor([len(data)]), 0, "control", "the folder's name")
    letters = torch.zeros(int(size), dtype=torch.uint8)
    letters[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    return bytes(comm.broadcast(letters, 0, "control", "the folder's name").tolist()).decode()


def _write(outcome: Outcome, path: Path) -> None:
    path.write_text(json.dumps({**vars(outcome), "info": outcome.info.model_dump(mode="json")}))


def _read(path: Path) -> Outcome:
    fields = json.loads(path.read_text())
    return Outcome(**{**fields, "info": PartitionInfo.model_validate(fields["info"])})


def _main() -> None:
    folder = Path(sys.argv[1])
    job = Job.model_validate_json((folder / SCRATCH / JOB).read_text())
    comm = open_communicator(DEADLINE_SECONDS)
    outcome = _work(comm, job, folder)
    if comm.worker == 0:
        _write(outcome, folder / SCRATCH / RESULT)
    comm.close()


if __name__ == "__main__":
    run_worker(_main)
