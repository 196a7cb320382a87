"""`torchrun -m tests.multihost.comm_script FOLDER EPOCHS DEADLINE`: exchanges rows until told otherwise."""

import sys
import time
from pathlib import Path

import torch

from tests.launch.launching import meet, write_whole
from weft.comm import build_route, exchange, open_communicator, run_worker
from weft.launch.parent import guard


def main() -> None:
    folder, epochs, deadline_seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    guard(deadline_seconds)  # first: whoever waits for the others must end with an agent that is killed
    meet(folder)
    comm = open_communicator(deadline_seconds=deadline_seconds)
    counts = [0 if peer == comm.worker else 3 for peer in range(comm.num_workers)]
    route = build_route(comm, torch.tensor([0, 2, 2] * (comm.num_workers - 1)), counts, 4)
    for epoch in range(epochs):
        comm.step = f"epoch {epoch}"
        x = torch.full((4, 8), float(comm.worker), requires_grad=True)
        y = exchange(x, route, comm)
        y.sum().backward()
        for peer, rows in enumerate(route.recv_rows):
            assert torch.equal(y[rows], torch.full_like(y[rows], float(peer)))
        assert x.grad is not None
        assert x.grad[:, 0].tolist() == [comm.num_workers - 1.0, 0.0, 2 * (comm.num_workers - 1.0), 0.0]
        comm.all_reduce(torch.ones(1), "control", "the loss")
        write_whole(folder / f"{comm.worker}.epoch", str(epoch))
        if epochs > 100:
            time.sleep(0.02)
    comm.barrier("end")
    print(f"worker {comm.worker} sent {comm.sent['hidden_forward']} bytes forward", flush=True)
    comm.close()


if __name__ == "__main__":
    run_worker(main)
