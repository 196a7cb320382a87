"""Rows on a GPU: through gloo by way of host memory, and through NCCL where each worker has a GPU."""

import pytest
import torch

from tests.workers import run_workers
from weft.comm import Communicator, all_reduce_gradients, bf16, build_route, exchange, open_communicator, raw

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def on_gpu(comm: Communicator, codec_name: str) -> dict[str, torch.Tensor]:
    """Every worker needs rows 0 and 2 of every other one; workers may share one GPU."""
    assert comm.backend == "gloo"
    comm.device = torch.device("cuda", comm.worker % torch.cuda.device_count())
    counts = [0 if peer == comm.worker else 2 for peer in range(comm.num_workers)]
    route = build_route(comm, torch.tensor([0, 2] * (comm.num_workers - 1)), counts, 3)
    x = torch.full((3, 4), float(comm.worker + 1), device=comm.device, requires_grad=True)
    y = exchange(x, route, comm, bf16 if codec_name == "bf16" else raw)
    y.sum().backward()
    weight = torch.nn.Parameter(torch.zeros(3, device=comm.device))
    weight.grad = torch.ones_like(weight)
    all_reduce_gradients(comm, [weight])
    gathered = comm.all_gather(torch.tensor([comm.worker], device=comm.device), "control", "numbers")
    told = comm.broadcast(torch.full((2,), comm.worker, device=comm.device), 1, "control", "word")
    comm.barrier("end")
    assert x.grad is not None and weight.grad is not None
    assert all(t.is_cuda for t in (y, x.grad, weight.grad, gathered, told))
    values = {"y": y, "grad": x.grad, "weight": weight.grad, "gathered": gathered, "told": told}
    return {name: value.detach().cpu() for name, value in values.items()}


@pytest.mark.parametrize("codec_name", ["raw", "bf16"])
def test_gloo_moves_gpu_rows(codec_name: str) -> None:
    for worker, got in enumerate(run_workers(on_gpu, 3, codec_name, fresh=True)):
        peers = [float(peer + 1) for peer in range(3) if peer != worker]
        assert got["y"][:, 0].tolist() == [value for value in peers for _ in range(2)]
        assert got["grad"][:, 0].tolist() == [2.0, 0.0, 2.0]
        assert got["weight"].tolist() == [3.0] * 3
        assert got["gathered"][:, 0].tolist() == [0, 1, 2]
        assert got["told"].tolist() == [1, 1]


def with_nccl(_: Communicator) -> list[float]:
    torch.distributed.destroy_process_group()
    comm = open_communicator(deadline_seconds=60.0, device="cuda")
    assert comm.backend == "nccl"
    counts = [0 if peer == comm.worker else 1 for peer in range(comm.num_workers)]
    route = build_route(comm, torch.zeros(comm.num_workers - 1, dtype=torch.int64), counts, 1)
    x = torch.full((1, 2), float(comm.worker + 1), device=comm.device, requires_grad=True)
    y = exchange(x, route, comm)
    y.sum().backward()
    total = comm.all_reduce(torch.ones(1, device=comm.device), "control", "total")
    assert x.grad is not None
    return [float(y[0, 0]), float(x.grad[0, 0]), float(total)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU per worker")
def test_nccl_moves_rows() -> None:
    assert run_workers(with_nccl, 2, fresh=True) == [[2.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
