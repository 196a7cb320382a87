"""Epochs of minibatches by workers on several hosts: one side of benchmarks that change the links between them."""

import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from weft.aggregate import DistributedGraph
from weft.comm import Communicator, all_reduce_gradients, open_communicator
from weft.config import make_config
from weft.estimate.choice import estimate_plans, plans_as_json
from weft.estimate.cost import best_of
from weft.estimate.footprint import WorkerLoad
from weft.kernels import memory
from weft.layers import ModelConfig, build_model
from weft.partitioning import Shard, load_shard
from weft.sample import PartitionBook, Plan, SampleConfig, VertexSource
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.steps import VertexSteps


def serve(parts: Path) -> None:
    """Reads questions line by line, {"what": "epochs" or "plans", ...}, and answers each."""
    torch.set_num_threads(1)
    comm = open_communicator(600.0)
    shard = load_shard(parts, comm.worker, comm.num_workers)
    for line in sys.stdin:
        question = json.loads(line)
        answer = {"epochs": epochs, "plans": plans}[question.pop("what")](comm, shard, **question)
        print(json.dumps(answer), flush=True)
        gc.collect()
        memory.release()  # the next one begins as if it were the first


def epochs(
    comm: Communicator,
    shard: Shard,
    count: int,
    model: dict[str, Any],
    plan: Plan,
    steps: int,
    batch: int,
    sample: dict[str, Any],
) -> dict[str, Any]:
    """What epochs of so many steps took, in the median, the first left out; and what they sent."""
    graph = DistributedGraph(shard, comm)
    assert shard.x is not None and shard.y is not None and shard.train_mask is not None
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), shard.x.shape[1], shard.num_classes)
    rows = share_of(shard.train_mask.nonzero().squeeze(1), steps * batch, comm)
    config = SampleConfig(batch=batch, **sample)
    book = PartitionBook(shard, comm)
    seeds = VertexSource(rows, shard.global_ids, batch, 0, comm, book.own.start)
    # Epochs do not end here for who plans ahead: while the last one is timed, the next is being fetched.
    loader = make_loader(graph, module, shard.x, seeds, book, config, plan, 0, count + 2)
    loss_of = GlobalLoss(shard.y, rows, shard.num_classes, "none", comm)
    passes = VertexSteps(graph, module, loader, seeds, shard.y, loss_of)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.003)
    seconds, waiting, sent = [], [0], {}
    for epoch in range(1, count + 2):
        comm.barrier("epoch")
        started, before = time.perf_counter(), dict(comm.sent)
        for step in passes.epoch(epoch):
            optimiser.zero_grad()
            step.loss().backward()  # type: ignore[no-untyped-call]
            all_reduce_gradients(comm, list(module.parameters()))
            optimiser.step()
        comm.barrier("end of epoch")
        seconds.append(time.perf_counter() - started)
        in_steps = {kind: comm.sent[kind] - before[kind] for kind in ("gradients", "hidden_forward", "hidden_backward")}
        planned = passes.planned_bytes()
        sent = {
            "features": planned["features"],
            "structure": planned["ids"] + planned["topology"],
            "hidden": in_steps["hidden_forward"] + in_steps["hidden_backward"],
            "gradients": in_steps["gradients"],
        }
        waiting.append(loader.counts.remote)
    passes.close()
    return {
        "seconds": statistics.median(seconds[1:]),
        "bytes": sent,
        "remote": waiting[-1] - waiting[-2],
        "macrobatch_size": loader.macrobatch_size,
        "kept": loader.described()["kept_aggregates"],
    }


def plans(
    comm: Communicator, shard: Shard, model: dict[str, Any], steps: int, batch: int, sample: dict[str, Any]
) -> dict[str, Any]:
    """What `--strategy auto` would choose among plans of minibatches, and all that it compared."""
    assert shard.x is not None and shard.train_mask is not None
    rows = share_of(shard.train_mask.nonzero().squeeze(1), steps * batch, comm)
    mask = torch.zeros_like(shard.train_mask)
    mask[rows] = True
    config = make_config({"model": model, "sample": {"batch": batch, **sample}, "workers": comm.num_workers})
    torch.manual_seed(0)
    module = build_model(config.model, shard.x.shape[1], shard.num_classes)
    widths = (shard.x.shape[1], *module.widths[1:])  # type: ignore[index]
    weights = sum(weight.numel() for weight in module.parameters())
    load = WorkerLoad(shard.num_nodes, shard.num_halo, shard.num_edges, widths, 4, comm.num_workers, parameters=weights)
    estimates, speeds = estimate_plans(config, shard.with_vertex_data(train_mask=mask), comm, module, load)
    minibatches = [estimate for estimate in estimates if estimate.settings]
    best = best_of(minibatches)
    return {**plans_as_json(minibatches, speeds), "strategy": best.strategy, "sample": best.settings["sample"]}


def share_of(rows: torch.Tensor, wanted: int, comm: Communicator) -> torch.Tensor:
    """So many of all workers' training vertices, of each worker its share."""
    counts = comm.all_gather(torch.tensor([rows.numel()]), "control", "training vertices").flatten()
    shares = (counts * wanted // counts.sum()).tolist()
    shares[0] += wanted - sum(shares)
    assert shares[comm.worker] <= rows.numel(), "the graph has too few training vertices"
    return rows[: shares[comm.worker]]


if __name__ == "__main__":
    serve(Path(sys.argv[2]))
