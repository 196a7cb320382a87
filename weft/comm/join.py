"""How a worker joins its run: the environment, the device, the backend."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from weft.comm.communicator import DEFAULT_DEADLINE_SECONDS, Communicator
from weft.comm.failure import Reports, first_sentence
from weft.errors import UserError, WorkerLost, unknown
from weft.launch.parent import guard


def open_communicator(
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    backend: str = "auto",
    device: str | torch.device = "cpu",
) -> Communicator:
    """Joins the run that the environment describes (weft's launcher or torchrun); alone where there is none.

    The deadline bounds every wait of the run, including this one. `backend` is auto, gloo, nccl or mpi; auto takes
    nccl where every worker of this host has a GPU of its own, gloo otherwise. Device auto is a GPU where there is one.
    """
    num_workers = int(os.environ.get("WORLD_SIZE", "1"))
    device = _own_device(torch.device(_present() if device == "auto" else device))
    if num_workers == 1 and backend in ("auto", "gloo", "nccl"):
        return Communicator.alone(device, deadline_seconds)
    backend = _choose_backend(backend, device)
    guard(deadline_seconds)
    deadline = timedelta(seconds=deadline_seconds)
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        if backend == "mpi":  # MPI knows the ranks itself and has no store
            dist.init_process_group("mpi")
            return Communicator(dist.get_rank(), dist.get_world_size(), device, deadline_seconds, "mpi")
        store, worker, num_workers = next(rendezvous("env://", timeout=deadline))
        dist.init_process_group(
            backend,
            store=PrefixStore("weft", store),
            rank=worker,
            world_size=num_workers,
            timeout=deadline,
            device_id=device if backend == "nccl" else None,
        )
    except ValueError as error:
        raise UserError(
            f"the environment does not describe a run ({first_sentence(str(error))}): start workers with "
            "'weft train --workers N' or with torchrun"
        ) from error
    except RuntimeError as error:
        worker = int(os.environ.get("RANK", "-1"))
        raise WorkerLost(
            f"worker {worker} could not join the run at {where} during start: not all {num_workers} workers met "
            f"within the deadline of {deadline_seconds:g} s ({first_sentence(str(error))})"
        ) from error
    reports = Reports(store, worker, num_workers)
    return Communicator(worker, num_workers, device, deadline_seconds, backend, reports)


def _present() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _own_device(device: torch.device) -> torch.device:
    """This worker's GPU where 'cuda' without a number was asked for."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but this machine has no usable GPU: use device 'cpu'")
    if ":" not in str(device):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _choose_backend(backend: str, device: torch.device) -> str:
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }
    local_workers = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if backend == "auto":
        own_gpu = device.type == "cuda" and local_workers <= torch.cuda.device_count()
        return "nccl" if own_gpu and available["nccl"] else "gloo"
    if backend not in available:
        raise unknown("communication backend", backend, ["auto", *available])
    if not available[backend]:
        raise UserError(f"this build of torch has no '{backend}' backend: use 'auto' or install one that has")
    if backend == "nccl" and device.type != "cuda":
        raise UserError("backend 'nccl' moves GPU tensors only: use device 'cuda', or backend 'gloo'")
    if backend == "nccl" and local_workers > torch.cuda.device_count():
        raise UserError(
            f"backend 'nccl' wants a GPU for each worker, but {local_workers} workers of this host have "
            f"{torch.cuda.device_count()}: start fewer workers, or use backend 'gloo', through which they share GPUs"
        )
    return backend
