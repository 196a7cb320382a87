"""For a training loop of your own: joining the workers of a run, and opening this worker's part of a graph."""

import os
from pathlib import Path

import torch

from weft.aggregate import DistributedGraph
from weft.comm import DEFAULT_DEADLINE_SECONDS, Communicator, open_communicator
from weft.errors import UserError
from weft.graph import Graph, as_graph
from weft.partitioning import Shard, load_shard, whole_shard
from weft.prepare import folder_kind


def init_workers(
    device: str | torch.device = "cpu",
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    backend: str = "auto",
) -> Communicator:
    """Joins the run that the environment describes (torchrun's, or weft's own launcher's); alone where there is none.

    >>> with weft.init_workers() as comm:
    ...     total = comm.all_reduce(torch.tensor([float(comm.worker + 1)]))
    >>> comm.num_workers, total.item()
    (1, 1.0)

    device: "cpu"; "cuda", each worker of a host takes the GPU of its local number; "auto", a GPU where there is one.
    deadline_seconds: bounds every wait for other workers, this one included; who is missing then is named.
    backend: auto, gloo, nccl or mpi; auto takes nccl where every worker of this host has a GPU of its own, else gloo.

    At the end of the `with` block workers wait for each other and leave. When one of several raises an exception in it,
    it prints one sentence (of a mistake of the program, the traceback) and ends its process, with exit code 2 for a
    `UserError` and 1 otherwise; the others notice, say whom they lost, and end, too. Code after the block does not run
    then. A worker that is alone raises the exception as any program does.
    """
    return open_communicator(deadline_seconds, backend, device)


def open_part(data: Graph | Shard | Path | str, comm: Communicator | None = None) -> DistributedGraph:
    """This worker's part of a graph, connected to the parts of the others.

    >>> with weft.init_workers() as comm:
    ...     graph = weft.open_part("synthetic:tiny", comm)
    ...     with graph.training_pass(epoch=1) as view:
    ...         means = view.aggregate(graph.shard.x, "mean")
    >>> tuple(means.shape), int(graph.shard.train_mask.sum())
    ((300, 16), 162)

    data: a partition folder, made by `weft.partition`, for as many workers as it has parts or fewer; or, for one
    worker, a Graph or a graph of PyG, DGL or networkx, a data set's name, or the path of a graph folder or npz file.
    comm: what `init_workers` gave; None: this process is the only worker.
    """
    comm = comm or joined()
    return DistributedGraph(own_shard(data, comm).to(comm.device), comm)


def joined() -> Communicator:
    """The communicator of the only worker; where there are several, theirs has to be given."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "several workers were started: join them with weft.init_workers(), and give what it returns as comm=..."
        )
    return Communicator.alone()


def own_shard(data: Graph | Shard | Path | str, comm: Communicator) -> Shard:
    """This worker's shard of a graph."""
    if isinstance(data, Shard):
        if (data.worker, data.num_workers) != (comm.worker, comm.num_workers):
            raise UserError(
                f"the shard is that of worker {data.worker} of {data.num_workers}, and this is worker {comm.worker} "
                f"of {comm.num_workers}: load its own (a partition folder does so)"
            )
        return data
    if isinstance(data, str | Path) and folder_kind(data) == "partition":
        return load_shard(data, comm.worker, comm.num_workers)
    if comm.num_workers > 1:
        what = data if isinstance(data, str | Path) else f"a {type(data).__name__}"
        raise UserError(
            f"{comm.num_workers} workers need a partition folder, and {what} is none: make one with weft.partition "
            f"(weft partition GRAPH --parts {comm.num_workers} --out PARTS), and give it"
        )
    return whole_shard(as_graph(data))
