"""What one worker process does for `weft train`, `weft evaluate` and `weft export`."""

import hashlib
import json
import os
import statistics
import time
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from weft.aggregate import GraphView, find_reach, order_by, order_for_overlap
from weft.choosing import described, weigh, with_choice
from weft.comm import Communicator, open_communicator
from weft.config import RunConfig, make_config
from weft.cost import best_of
from weft.errors import UserError, optional
from weft.footprint import Load, explain_failure, ran_out, refuse_if_too_large
from weft.graph.splits import known
from weft.kernels import memory
from weft.layers import BatchNorm, Layer, Stack, add_embedding, build_model
from weft.partition import Shard, read_partition
from weft.prepare import open_shard, parts_folder, parts_per_worker
from weft.sample import Minibatches, Plan
from weft.show import print_rows, run_rows
from weft.strategy import make_format, make_schedule
from weft.train.checkpoint import load_checkpoint, load_weights, newest_valid
from weft.train.console import Console
from weft.train.evaluate import pick_masks
from weft.train.links import Edges, HeldOut
from weft.train.loop import WIRE, Executor, Outcome, Task, fit
from weft.train.machine import describe_machine, peak_rss_bytes
from weft.train.minibatches import MakeSource, make_minibatches
from weft.train.objective import Objective, Vertices, input_rows
from weft.train.runfolder import RunFolder
from weft.train.steps import FullGraph
from weft.train.trace import Trace, merge_files

EXIT_INTERRUPTED = 143
WORTH_RESTRICTING = 0.25  # of the rows that need not be computed: below it, the better order of rows is worth more


@dataclass
class Worker:
    """One worker of a run, set up: its config, folder, view of the graph, and model."""

    config: RunConfig
    folder: RunFolder
    comm: Communicator
    view: GraphView
    model: nn.Module
    load: Load
    held: HeldOut | None  # edges that training does not see


class Joined(NamedTuple):
    """A worker that has joined its run, before anything is decided about it."""

    config: RunConfig
    folder: RunFolder
    comm: Communicator
    shard: Shard
    held: HeldOut | None
    model: nn.Module
    width: int
    load: Load
    parts: int


def join(run: Path, config: RunConfig | None = None) -> Joined:
    """Joins the run, loads this worker's shard and builds the model, the same on every worker.

    Under torchrun the config is given: the folder, which worker 0 makes, is there when all have joined, not before.
    """
    config = config or make_config(RunFolder.open(run).config())
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    comm = open_communicator(config.deadline_seconds, device=config.device)
    folder = RunFolder.open(run)
    if comm.num_workers != config.workers:
        raise UserError(f"{comm.num_workers} workers were started, but the config says workers: {config.workers}")
    comm.step = "loading"
    parts = parts_per_worker(config, run)
    _set_memory(config, parts, folder)
    shard = open_shard(config, run, comm)
    held = None
    if config.train.task == "links":
        held = HeldOut(shard, comm, config.link, config.seed)
        shard = held.without(shard)
    elif shard.num_classes < 1:
        raise UserError(f"{shard.graph_name} has no classes to predict: ingest it with --labels")
    num_out = shard.num_classes if held is None else config.model.hidden
    torch.manual_seed(config.seed)
    width = config.model.embedding if shard.x is None else shard.x.shape[1]
    model = build_model(config.model, width, num_out, shard.num_relations)
    return Joined(config, folder, comm, shard, held, model, width, _load(config, shard, model, width), parts)


def weigh_plans(run: Path, out: Path, megabits: float | None, latency: float | None) -> None:
    """Writes what each plan would take."""
    joined = join(run)
    options, speeds = weigh(joined.config, joined.shard, joined.comm, joined.model, joined.load, megabits, latency)
    shard = joined.shard
    halo = joined.comm.all_reduce(torch.tensor([shard.num_halo]), "control", "rows that others read")
    if joined.comm.worker == 0:
        found = described(options, speeds)
        found["graph"] = {
            "name": shard.graph_name,
            "vertices": shard.num_global_nodes,
            "edges": shard.num_global_edges,
            "features": joined.width,
            "classes": shard.num_classes,
            "remote": int(halo) / max(1, shard.num_global_nodes),
        }
        found["speeds"] = asdict(speeds)
        out.write_text(json.dumps(found))
    joined.comm.barrier("plans")


def open_worker(run: Path, config: RunConfig | None = None, training: bool = False) -> Worker:
    """What a worker needs to train or to judge, set up as the config says; `auto` is decided here."""
    config, folder, comm, shard, held, model, width, load, parts = join(run, config)
    if config.strategy == "auto":
        options, _ = weigh(config, shard, comm, model, load)
        config = with_choice(config, best_of(options))
        _set_memory(config, parts, folder)
        if comm.worker == 0:
            folder.write_config(config.model_dump(mode="json"))
        comm.barrier("choice of a plan")
    full = config.exchange.plan == "full"
    if full and not memory.spills() and config.device == "cpu":
        refuse_if_too_large(load, config.exchange, config.memory, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    sizes = None
    if full and training and not config.executor.pipelines and restricts(config, model):
        shard, sizes = _restrict(config, shard, comm, len(cast(Stack, model).layers))
    if sizes is None and config.exchange.schedule == "overlapped" and comm.num_workers > 1:
        shard = order_for_overlap(shard, comm)
    view = GraphView(
        shard.to(comm.device),
        comm,
        make_format(config.exchange),
        make_schedule(config.exchange, shard.num_global_nodes, config.workers, parts),
    )
    if sizes is not None:
        view.restrict(sizes)
    view.noise.seed = config.seed
    if shard.x is None:
        add_embedding(model, width, view.global_ids, config.seed)
    if isinstance(model, Stack):
        model.rematerialise = config.memory.rematerialise
    return Worker(config, folder, comm, view, model.to(comm.device), load, held)


def _set_memory(config: RunConfig, parts: int, folder: RunFolder) -> None:
    if config.exchange.schedule == "sequential":
        memory.be_thrifty()
    if spills(config, parts):
        memory.spill_to(folder.path)


def spills(config: RunConfig, parts: int) -> bool:
    """Whether rows lie in files."""
    if config.memory.spill != "auto":
        return config.memory.spill == "always"
    return config.exchange.schedule == "sequential" and config.workers == 1 and parts > 1


def restricts(config: RunConfig, model: nn.Module) -> bool:
    """Whether a training pass may leave out rows that the loss does not depend on: not where statistics need all.

    Layers of a user's own may relate rows in ways of their own, so theirs are restricted only where that is asked for.
    """
    possible = isinstance(model, Stack) and not any(isinstance(module, BatchNorm) for module in model.modules())
    if config.memory.restrict == "always" and not possible:
        raise UserError(
            "memory.restrict=always leaves vertices out, but batch normalisation needs all of them, and a model of "
            "your own that is not a weft.layers.Stack has no layers to restrict: use memory.restrict=auto"
        )
    if config.memory.restrict == "auto" and isinstance(model, Stack):
        possible = possible and all(isinstance(layer, Layer) for layer in model.layers)
    return config.memory.restrict != "never" and possible


def _restrict(config: RunConfig, shard: Shard, comm: Communicator, layers: int) -> tuple[Shard, list[int] | None]:
    """The shard in the order in which its rows are needed, and how many each layer needs; None where all are."""
    masks = pick_masks(shard, config.train.split)
    if shard.y is None or "train" not in masks:
        return shard, None  # refused with a reason when training begins
    reach = find_reach(shard, comm, masks["train"] & known(shard.y), layers)
    if config.memory.restrict == "auto" and reach.spared < WORTH_RESTRICTING:
        return shard, None
    return order_by(shard, comm, reach.depth), reach.sizes


def _load(config: RunConfig, shard: Shard, model: nn.Module, width: int) -> Load:
    widths = model.widths[1:] if isinstance(model, Stack) else ()
    if not widths:  # a model of a user's own: as wide and deep as its config says
        widths = (*[config.model.hidden] * (config.model.layers - 1), shard.num_classes)
    return Load(
        rows=shard.num_nodes,
        halo=shard.num_halo,
        edges=shard.num_edges,
        widths=(width, *widths),
        itemsize=getattr(torch, config.train.precision).itemsize,
        workers=config.workers,
        model=config.model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        relations=shard.num_relations,
    )


def train(run: Path, resume: bool, quiet: bool = False, config: RunConfig | None = None) -> int:
    """Trains, and writes the summary; returns the exit code."""
    started = time.perf_counter()
    worker = open_worker(run, config, training=True)
    config, comm = worker.config, worker.comm
    shows = comm.worker == 0 and not quiet
    with Console(config.train.epochs, show=shows) as console:
        trace = Trace(comm.worker, enabled=False)
        comm.on_wait = lambda what, start, end: trace.record(what, "wait", start, end)
        task = Task(
            worker.view,
            worker.model,
            _objective(worker),
            config.train,
            config.optim,
            worker.folder,
            on_step=console.step,
            on_epoch=console.update,
            trace=trace,
        )
        if config.executor.pipelines:
            task.executor = _executor(worker, task.objective)
        try:
            with memory.spilled_activations(), closing(task.executor) if task.executor else nullcontext():
                outcome = fit(task, resume)
        except (MemoryError, OSError, RuntimeError) as error:
            if not ran_out(error):
                raise
            raise explain_failure(error, worker.load, config.exchange, config.memory) from error
    comm.on_wait = None
    _write_trace(worker, trace)
    summary = _summary(worker, outcome, time.perf_counter() - started)
    if comm.worker == 0:
        worker.folder.write_summary(summary)
        worker.folder.close()
    if shows:
        print_rows(str(worker.folder.path), run_rows(summary))
    comm.barrier("end")
    comm.close()
    memory.spill_to(None)  # with one worker this process goes on
    memory.be_thrifty(False)
    return EXIT_INTERRUPTED if outcome.status == "interrupted" else 0


def _objective(worker: Worker, training: bool = True) -> Vertices | Edges:
    """What the run learns; without `training`, only how it is judged."""
    config, view, model = worker.config, worker.view, worker.model
    x = input_rows(view, model, config.train)
    minibatches, plan = None, config.exchange.plan
    if training and plan != "full":

        def minibatches(x: Tensor, source: MakeSource, plan: Plan = plan) -> Minibatches:
            return make_minibatches(view, model, config.sample, plan, config.seed, config.train.epochs, x, source)

    if worker.held is not None:
        return Edges(view, model, x, worker.held, config.link, minibatches, config.sample, config.seed)
    return Vertices(view, model, x, config.train, minibatches, config.sample, config.seed, training)


def _executor(worker: Worker, objective: Objective) -> Executor:
    """Who runs the epochs where intervals go through them by themselves."""
    with optional("a run in intervals"):
        from weft.serverless.executor import Pipelined

    config, steps = worker.config, objective.steps
    assert isinstance(steps, FullGraph)
    cache = config.train.cache_input
    return Pipelined(
        worker.view, worker.model, steps.x, steps.loss_of, config.executor, config.optim, config.seed,
        config.train.epochs, cache,
    )  # fmt: skip


def evaluate(run: Path) -> tuple[dict[str, float], int]:
    """The run's metric on each split, with its best weights, over the whole graph; and which worker this is."""
    worker = open_worker(run)
    objective = _trained(worker)
    values, _ = objective.judge()
    return {f"{split}_{objective.metric}": value for split, value in values.items()}, worker.comm.worker


def export(run: Path, out: Path) -> None:
    """Writes this worker's outputs and global ids as OUT/WORKER-{logits,ids}.npy, for the parent to join."""
    worker = open_worker(run)
    logits = _trained(worker).outputs()
    np.save(out / f"{worker.comm.worker}-logits.npy", logits.cpu().numpy())
    np.save(out / f"{worker.comm.worker}-ids.npy", worker.view.global_ids.cpu().numpy())
    worker.comm.barrier("export")


def _trained(worker: Worker) -> Vertices | Edges:
    """How the run is judged, with its best weights."""
    objective = _objective(worker, training=False)
    path, _ = newest_valid(worker.folder.checkpoints)
    best = load_checkpoint(path, worker.model, None, worker.view.global_ids)
    load_weights(worker.model, best, path)
    return objective


def _cost(outcome: Outcome) -> dict[str, float] | None:
    """What all epochs cost together, and an epoch's median value; None where products are not done elsewhere."""
    records = [record["cost"] for record in outcome.records if "cost" in record]
    if not records:
        return None
    parts = [name for name in records[0] if name != "value"]
    totals = {name: sum(record[name] for record in records) for name in parts}
    return totals | {"value": statistics.median(record["value"] for record in records)}


def _write_trace(worker: Worker, trace: Trace) -> None:
    part = worker.folder.trace_part(worker.comm.worker)
    part.parent.mkdir(parents=True, exist_ok=True)
    trace.write(part)
    worker.comm.barrier("trace")
    if worker.comm.worker == 0:
        parts = sorted(worker.folder.path.glob("trace-*.json"))
        merge_files(parts, worker.folder.trace_file)


def _summary(worker: Worker, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """summary.json: what came out, what it cost, on which machine."""
    config, comm, shard = worker.config, worker.comm, worker.view.shard
    peaks = comm.all_gather(torch.tensor([peak_rss_bytes()]), "control", "peak memory").flatten().tolist()
    rows = _row_counts(worker, outcome)
    times = sorted(record["seconds"] for record in outcome.records) or [0.0]
    per_class = {kind: _median(record["wire_bytes"][kind] for record in outcome.records) for kind in WIRE}
    once = torch.tensor([comm.sent[kind] for kind in WIRE])
    comm.all_reduce(once, "control", "bytes")
    phases = {name: _median(r["phase_seconds"].get(name, 0.0) for r in outcome.records) for name in _phases(outcome)}
    parts = parts_folder(config, worker.folder.path)
    return {
        "status": outcome.status,
        "strategy": config.strategy,
        "model": config.model.name,
        "workers": comm.num_workers,
        "epochs": outcome.progress.epoch,
        "seed": config.seed,
        "metric": outcome.metric,
        "train_loss": outcome.train_loss,
        **{f"{split}_{outcome.metric}": value for split, value in outcome.values.items()},
        "best_epoch": outcome.progress.best_epoch,
        "epoch_seconds": {
            "median": statistics.median(times),
            "p90": times[min(len(times) - 1, int(0.9 * len(times)))],
            "total": sum(times),
        },
        "assign_seconds": sum(record["phase_seconds"].get("assign", 0.0) for record in outcome.records),
        "total_seconds": seconds,
        "phase_seconds": phases,
        "wire_bytes": {
            "per_epoch": sum(per_class.values()),
            **per_class,
            "whole_run": dict(zip(WIRE, once.tolist(), strict=True)),
        },
        "rows": rows,
        "cost": _cost(outcome),
        "minibatches": None if outcome.minibatches is None else outcome.minibatches.described(),
        "peak_rss_bytes": peaks,
        "weights_sha256": weights_digest(outcome.last_weights),
        "best_weights_sha256": weights_digest(worker.model.state_dict()),
        "graph": {
            "name": shard.graph_name,
            "num_nodes": shard.num_global_nodes,
            "num_edges": shard.num_global_edges,
            "num_features": 0 if shard.x is None else shard.x.shape[1],
            "num_classes": shard.num_classes,
            "fingerprint": shard.fingerprint,
        },
        "partition": None if parts is None else _partition_facts(parts),
        "machine": describe_machine(),
    }


def _row_counts(worker: Worker, outcome: Outcome) -> dict[str, int]:
    """Rows that an epoch's steps want, over all workers: without minibatches, those of the halo."""
    halo = worker.view.shard.num_halo
    mine = torch.tensor([halo, halo, halo, 0])
    if outcome.minibatches is not None:
        counts = outcome.minibatches.counts
        epochs = max(len(outcome.records), 1)
        mine = torch.tensor([counts.requested, counts.unique, counts.remote, counts.cached]) // epochs
    worker.comm.all_reduce(mine, "control", "rows")
    return dict(zip(("requested", "unique", "remote", "cached"), mine.tolist(), strict=True))


def _phases(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(name for record in outcome.records for name in record["phase_seconds"]))


def _median(values: Any) -> Any:
    values = list(values)
    return statistics.median(values) if values else 0


def _partition_facts(parts: Path) -> dict[str, Any]:
    info = read_partition(parts)
    quality = info.quality
    return {
        "method": info.method,
        "parts": info.num_parts,
        "cut_fraction": quality.cut_fraction,
        "halo_rows": quality.halo,
        "node_balance": quality.node_balance,
        "edge_balance": quality.edge_balance,
        "train_balance": quality.train_balance,
    }


def weights_digest(weights: dict[str, Tensor]) -> str:
    """sha256 over names and bytes of the weights that every worker holds alike."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        if name != "embedding":
            digest.update(name.encode())
            digest.update(weights[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
