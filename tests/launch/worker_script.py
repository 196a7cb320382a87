"""`python -m tests.launch.worker_script DEED FOLDER`: a worker that does one thing, for tests of the launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from tests.launch.launching import meet, write_whole
from weft.comm import Communicator, open_communicator, run_worker
from weft.errors import UserError


def main() -> None:
    deed, folder = sys.argv[1], Path(sys.argv[2])
    deadline_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    (folder / f"{os.environ.get('RANK', 'x')}.pid").write_text(str(os.getpid()))
    if deed == "mistake":
        raise UserError("the graph has no vertices: give it some")
    if deed == "stop":  # its deadline is short
        meet(folder)
    comm = open_communicator(deadline_seconds=deadline_seconds)
    leaving: list[int] = []
    if deed == "leave":
        signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    names = ("OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE", "LOCAL_RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME")
    (folder / f"{comm.worker}.env").write_text("\n".join(f"{name}={os.environ.get(name)}" for name in names))
    epochs = 3 if deed in ("train", "mistake-on-one", "error-on-one") else 10**9
    for epoch in range(epochs):
        comm.step = f"epoch {epoch}"
        total = comm.all_reduce(torch.tensor([1.0, float(bool(leaving))]), "control", "flags")
        assert total[0] == comm.num_workers
        if total[1]:  # all leave together, at the same epoch
            (folder / f"{comm.worker}.checkpoint").write_text(str(epoch))
            sys.exit(128 + signal.SIGTERM)
        if comm.worker == comm.num_workers - 1:
            _misbehave(deed, epoch, folder)
        write_whole(folder / f"{comm.worker}.epoch", str(epoch))
        time.sleep(0.02)
    (folder / f"{comm.worker}.done").write_text("done")
    _say(comm)
    comm.barrier("end")
    comm.close()


def _misbehave(deed: str, epoch: int, folder: Path) -> None:
    if deed == "mistake-on-one" and epoch == 1:
        raise UserError("part 2 was altered: partition again")
    if deed == "error-on-one" and epoch == 1:
        print("about to divide", file=sys.stderr)
        raise ZeroDivisionError("by nothing")
    if deed == "die" and epoch == 12:
        child = subprocess.Popen(["sleep", "300"])
        (folder / "child.pid").write_text(str(child.pid))
        (folder / "fired").write_text("SIGKILL")
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "stop" and epoch == 5:
        (folder / "fired").write_text("SIGSTOP")
        os.kill(os.getpid(), signal.SIGSTOP)


def _say(comm: Communicator) -> None:
    print(f"worker {comm.worker} of {comm.num_workers} is done", flush=True)


if __name__ == "__main__":
    run_worker(main)
