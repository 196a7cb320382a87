"""What one worker process does for `weft train` and `weft plan`: joining the run, setting up, training."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from weft.aggregate import DistributedGraph, find_reach, order_by, order_for_overlap
from weft.aggregate.reducers import Traits
from weft.cli.show import print_rows, print_warning, run_rows
from weft.comm import Communicator, gather_texts, open_communicator
from weft.config import RunConfig, device_of, make_config
from weft.errors import UserError, optional
from weft.estimate.auto import WORTH_RESTRICTING, restricts, spills
from weft.estimate.choice import estimate_plans, plans_as_json, with_choice
from weft.estimate.cost import best_of
from weft.estimate.footprint import WorkerLoad, explain_failure, ran_out_of_memory, refuse_if_too_large, worker_load
from weft.graph.splits import known
from weft.graph.typedrows import Rows
from weft.kernels import memory
from weft.launch.process import scoped_process_state
from weft.layers import Given, Stack, add_embedding, build_model, edges_to_read, traits_of
from weft.partitioning import Shard, read_partition
from weft.prepare import hold_out, labelled_edges, open_shard, parts_folder, parts_per_worker, preparation_of
from weft.report.page import write_report
from weft.sample import PartitionBook
from weft.strategy import check_exchange, make_format, make_schedule
from weft.training.advice import advise, unread_edge_data
from weft.training.console import Console
from weft.training.decoders import Decoder
from weft.training.edges import EdgeLabels
from weft.training.epochs import EpochRunner
from weft.training.evaluate import pick_masks
from weft.training.identity import describe_graph, describe_settings
from weft.training.labelled import LabelledEdges
from weft.training.links import HeldOut, LinkPrediction
from weft.training.loop import OnRecord, Outcome, Task, fit
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.modelparts import add_parts
from weft.training.modelshape import ModelShape, shape_for
from weft.training.objective import VertexLabels, input_rows
from weft.training.runfolder import RunFolder
from weft.training.steps import FullGraph, Steps
from weft.training.summary import summarise
from weft.training.timed import MomentRows, refuse_full_graph, sees_of
from weft.training.trace import Trace, merge_files
from weft.training.tracking import Tracked, tracked

EXIT_INTERRUPTED = 143
CONFIG = "config.json"  # the name of the document in which the launcher passes the settings
Learned = VertexLabels | EdgeLabels | LinkPrediction
OnEpoch = Callable[[dict[str, Any]], None]


class TaskEdges(NamedTuple):
    """The edges that a run learns something of, where it does not learn labels of vertices."""

    held_out: HeldOut | None = None  # edges that training does not see, where the others are learned
    labelled: LabelledEdges | None = None  # edges whose labels are learned
    files_id: Mapping[str, str] = MappingProxyType({})  # digests of the files that name such edges


@dataclass
class Worker:
    """One worker of a run, set up: its config, folder, the graph, and model."""

    config: RunConfig
    folder: RunFolder
    comm: Communicator
    graph: DistributedGraph
    model: nn.Module
    load: WorkerLoad
    edges: TaskEdges
    decoder: Decoder | None  # of pairs
    graph_id: dict[str, Any]  # which graph it is
    shape: ModelShape

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a run the same run, and what its model was built for."""
        settings = describe_settings(self.config.model_dump(mode="json")) | dict(self.edges.files_id)
        return {"graph": self.graph_id, "settings": settings, "model": self.shape.as_json()}


class Joined(NamedTuple):
    """A worker that has joined its run, before anything is decided about it."""

    config: RunConfig
    folder: RunFolder
    comm: Communicator
    shard: Shard
    edges: TaskEdges
    decoder: Decoder | None
    model: nn.Module
    shape: ModelShape
    load: WorkerLoad
    parts: int
    graph_id: dict[str, Any]  # which graph it is


def join(
    run: Path, config: RunConfig | None = None, shape: ModelShape | None = None, given: Given | None = None
) -> Joined:
    """Joins the run, loads this worker's shard and builds the model, the same on every worker.

    `given` is the model, or what builds it, where the run was given it as an object.
    `shape` is that of a trained model which is put on another graph, whose labels and held-out edges do not matter.
    Under torchrun the config is given: the folder, which worker 0 makes, is there when all have joined, not before.
    """
    config = config or make_config(RunFolder.open(run).config())
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    comm = open_communicator(config.deadline_seconds, device=device_of(config))
    _announce(config, comm)
    folder = RunFolder.open(run)
    if comm.num_workers != config.workers:
        raise UserError(f"{comm.num_workers} workers were started, but the config says workers: {config.workers}")
    comm.step = "loading"
    refuse_different(config, comm)
    parts = parts_per_worker(config, run)
    _set_memory(config, parts, folder)
    shard = open_shard(config, run, comm)
    graph_id = describe_graph(shard, comm)
    edges = TaskEdges()
    if shape is None:
        shard, edges = _edges_of_task(config, run, shard, comm)
        preparation = preparation_of(config, run)
        learned = () if preparation is None else preparation.learned
        shape = _shape_of(config, shard, edges.labelled, learned, given)
    if sees_of(config.train, shard) == "all":  # but for what is held out by time, they do not matter
        shard = shard.without_times()
    torch.manual_seed(config.seed)
    model = build_model(
        config.model, shape.num_in, shape.num_out, shape.num_relations, given, shape.edge_reads, shape.columns,
        shape.type_widths, shape.type_columns,
    )  # fmt: skip
    _check_layers(config, model)
    decoder = add_parts(model, shape, config.train.task, config.link, shard.graph_name)
    load = worker_load(config, shard, model, shape.num_in)
    return Joined(config, folder, comm, shard, edges, decoder, model, shape, load, parts, graph_id)


def _edges_of_task(config: RunConfig, run: Path, shard: Shard, comm: Communicator) -> tuple[Shard, TaskEdges]:
    """The edges that the run is about, and the shard with those that training may see."""
    if config.train.task == "links":
        if config.exchange.schedule == "overlapped" and comm.num_workers > 1:
            shard = order_for_overlap(shard, comm)  # before places of edges are noted
        held_out, files = hold_out(config, run, shard, comm)
        files_id = {} if files is None else {"edges of link.val_edges and link.test_edges": files}
        return held_out.without(shard), TaskEdges(held_out, files_id=files_id)
    if config.train.task == "edges":
        labelled = labelled_edges(config, run, sees_of(config.train, shard) != "all")
        return shard, TaskEdges(labelled=labelled, files_id={"edges of edge.labels": labelled.digest()})
    if not shard.num_outputs:
        raise UserError(f"{shard.graph_name} has no classes to predict: ingest it with --labels")
    return shard, TaskEdges()


def _shape_of(
    config: RunConfig,
    shard: Shard,
    labelled: LabelledEdges | None,
    learned: tuple[tuple[int, int], ...],
    given: Given | None = None,
) -> ModelShape:
    """What the run's model is built for."""
    if shard.types is not None:
        width = config.model.hidden  # of what the encoder gives
    else:
        width = config.model.embedding if shard.x is None else shard.x.shape[1]
    weighted = shard.local.weight is not None
    reads = edges_to_read(config.model, shard.num_edge_features, weighted, shard.graph_name, given)
    if config.train.task == "vertices":
        return shape_for(shard, width, shard.num_outputs, shard.y, reads=reads, learned_columns=learned)
    if labelled is None:
        return shape_for(shard, width, config.model.hidden, None, reads=reads, learned_columns=learned)
    outputs = labelled.num_outputs, labelled.num_features
    return shape_for(shard, width, config.model.hidden, labelled.y, *outputs, reads, learned)


def _check_layers(config: RunConfig, model: nn.Module) -> None:
    """Refuses codecs that would bias what the layers read of this graph, with the reason."""
    for layer in model.modules():
        check_exchange(config.exchange, Traits(unroundable=traits_of(layer).unroundable))


def _announce(config: RunConfig, comm: Communicator) -> None:
    """Says which device a run took by itself."""
    if config.device == "auto" and comm.device.type == "cuda" and comm.worker == 0:
        print(f"device auto: this run uses {torch.cuda.get_device_name(comm.device)}", file=sys.stderr, flush=True)


def refuse_different(config: RunConfig, comm: Communicator) -> None:
    """Refuses workers whose settings differ: on several hosts each worker reads them from a file of its own."""
    here = config.model_dump(mode="json", exclude={"run", "data", "threads", "device", "executor"})
    settings = [json.loads(text) for text in gather_texts(comm, json.dumps(here), "settings")]
    for worker, there in enumerate(settings):
        different = [name for name in settings[0] if there.get(name) != settings[0][name]]
        if different:
            raise UserError(
                f"worker {worker} has other settings than worker 0 ({', '.join(different)}): give every host the same "
                "config"
            )


@scoped_process_state()
def compare_plans(
    run: Path, out: Path, megabits: float | None, latency: float | None, config: RunConfig | None = None
) -> None:
    """Writes what each plan would take."""
    joined = join(run, config)
    estimates, speeds = estimate_plans(
        joined.config, joined.shard, joined.comm, joined.model, joined.load, megabits, latency
    )
    shard = joined.shard
    halo = joined.comm.all_reduce(torch.tensor([shard.num_halo]), "control", "rows that others read")
    if joined.comm.worker == 0:
        found = plans_as_json(estimates, speeds)
        found["graph"] = {
            "name": shard.graph_name,
            "vertices": shard.num_global_nodes,
            "edges": shard.num_global_edges,
            "features": joined.shape.num_in,
            "classes": shard.num_classes,
            "remote": int(halo) / max(1, shard.num_global_nodes),
        }
        found["speeds"] = asdict(speeds)
        out.write_text(json.dumps(found))
    joined.comm.barrier("plans")


def open_worker(
    run: Path,
    config: RunConfig | None = None,
    training: bool = False,
    shape: ModelShape | None = None,
    given: Given | None = None,
) -> Worker:
    """A worker set up to train or to evaluate, as the config says. Strategy `auto` is resolved here."""
    config, folder, comm, shard, edges, decoder, model, shape, load, parts, graph_id = join(run, config, shape, given)
    if config.strategy == "auto":
        estimates, _ = estimate_plans(config, shard, comm, model, load)
        config = with_choice(config, best_of(estimates))
        _check_layers(config, model)
        _set_memory(config, parts, folder)
        if comm.worker == 0:
            folder.write_config(config.model_dump(mode="json"))
        comm.barrier("choice of a plan")
    full = config.exchange.plan == "full"
    if full and training and sees_of(config.train, shard) != "all":
        raise refuse_full_graph(shard)
    if full and not memory.spills() and comm.device.type == "cpu":
        refuse_if_too_large(load, config.exchange, config.memory, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    sizes = None
    by_vertices = config.train.task == "vertices"
    if full and training and by_vertices and not config.executor.pipelines and restricts(config, model):
        shard, sizes = _restrict(config, shard, comm, len(cast(Stack, model).layers))
    if sizes is None and by_vertices and config.exchange.schedule == "overlapped" and comm.num_workers > 1:
        shard = order_for_overlap(shard, comm)
    graph = DistributedGraph(
        shard.to(comm.device),
        comm,
        make_format(config.exchange),
        make_schedule(config.exchange, shard.num_global_nodes, config.workers, parts),
    )
    if sizes is not None:
        graph.restrict(sizes)
    graph.noise.seed = config.seed
    if shard.learned is not None:
        add_embedding(model, shape.num_in, graph.learned_ids, config.seed)
    if isinstance(model, Stack):
        model.rematerialise = config.memory.rematerialise
    return Worker(config, folder, comm, graph, model.to(comm.device), load, edges, decoder, graph_id, shape)


def _set_memory(config: RunConfig, parts: int, folder: RunFolder) -> None:
    spill_folder = folder.path if spills(config, parts) else None
    memory.set_policy(memory.Policy(spill_folder, low_memory=config.exchange.schedule == "sequential"))


def _restrict(config: RunConfig, shard: Shard, comm: Communicator, layers: int) -> tuple[Shard, list[int] | None]:
    """The shard with its rows in the order in which layers need them, and how many each layer needs; None: all."""
    masks = pick_masks(shard, config.train.split)
    if shard.y is None or "train" not in masks:
        return shard, None  # refused with a reason when training begins
    reach = find_reach(shard, comm, masks["train"] & known(shard.y), layers)
    if config.memory.restrict == "auto" and reach.spared < WORTH_RESTRICTING:
        return shard, None
    return order_by(shard, comm, reach.depth), reach.sizes


@scoped_process_state()
def train(
    run: Path,
    resume: bool,
    quiet: bool = False,
    config: RunConfig | None = None,
    given: Given | None = None,
    on_record: OnRecord | None = None,
) -> int:
    """Trains, and writes the summary; returns the exit code. `on_record` as in `weft.training.loop.Task`."""
    started = time.perf_counter()
    worker = open_worker(run, config, training=True, given=given)
    config, comm = worker.config, worker.comm
    settings, shows = config.model_dump(mode="json"), comm.worker == 0 and not quiet
    warnings = _warn(worker, shows)
    opened = tracked(settings, worker.folder, comm.device, resume) if comm.worker == 0 else nullcontext(Tracked())
    with opened as trackers:
        with worker.folder, Console(config.train.epochs, show=shows) as console:
            trace = Trace(comm.worker, enabled=False)
            comm.on_wait = lambda what, start, end: trace.record(what, "wait", start, end)
            x = input_rows(worker.graph, worker.model, config.train)
            objective = objective_of(worker, x)
            steps = _steps(worker, x, objective)
            task = Task(
                worker.graph, worker.model, objective, steps, config.train, config.optim, worker.folder, settings,
                worker.identity, on_step=console.step, on_epoch=_both(console.update, trackers.epoch), trace=trace,
                on_record=on_record,
            )  # fmt: skip
            if config.executor.pipelines:
                task.runner = _pipeline(worker, steps)
            try:
                with memory.spilled_activations(), closing(task.runner) if task.runner else nullcontext():
                    outcome = fit(task, resume)
            except (MemoryError, OSError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
                raise explain_failure(error, worker.load, config.exchange, config.memory) from error
        comm.on_wait = None
        _write_trace(worker, trace)
        summary = _write_summary(worker, outcome, time.perf_counter() - started, warnings, shows)
        comm.barrier("end")
        comm.close()
        if trackers.any:  # last, since nobody waits any more
            report = write_report([run], worker.folder.report_file)
            trackers.end(summary["status"], summary, [report])
    return EXIT_INTERRUPTED if outcome.status == "interrupted" else 0


def _warn(worker: Worker, shows: bool) -> list[str]:
    """What the run leaves unread, printed where it shows anything."""
    config = worker.config
    drawn_by_weight = config.exchange.plan != "full" and config.sample.method == "weighted"
    warnings = unread_edge_data(worker.model, config.model, worker.graph.shard, drawn_by_weight)
    for text in warnings if shows else ():
        print_warning(text)
    return warnings


def _both(first: OnEpoch, second: OnEpoch) -> OnEpoch:
    def tell(record: dict[str, Any]) -> None:
        first(record)
        second(record)

    return tell


def _write_summary(
    worker: Worker, outcome: Outcome, seconds: float, warnings: list[str], shows: bool
) -> dict[str, Any]:
    """The summary, which worker 0 writes; every worker takes part in making it."""
    config = worker.config
    parts = parts_folder(config, worker.folder.path)
    info = None if parts is None else read_partition(parts)
    named = {"strategy": config.strategy, "model": config.model.name, "seed": config.seed}
    summary = summarise(named, worker.graph, worker.model, outcome, seconds, info)
    advice = advise(worker.graph, outcome, config.train) if config.train.task == "vertices" else []
    summary["notes"] = [*_notes_of_data(worker), *warnings, *advice]
    if worker.comm.worker == 0:
        worker.folder.write_summary(summary)
        worker.folder.close()
    if shows:
        print_rows(str(worker.folder.path), run_rows(summary | {"notes": advice}))  # others have been printed
    return summary


def _notes_of_data(worker: Worker) -> list[str]:
    """What the user should know about the features of all vertices, or of those of each type."""
    types = worker.graph.shard.types
    made = [preparation_of(worker.config, worker.folder.path)]
    made += [] if types is None else [kind.preparation for kind in types.vertices]
    return [note for preparation in made if preparation is not None for note in preparation.notes]


def objective_of(worker: Worker, x: Rows, training: bool = True) -> Learned:
    """What the run learns; without `training`, only how it is evaluated."""
    config, graph, model = worker.config, worker.graph, worker.model
    sees = sees_of(config.train, graph.shard)
    if config.train.task == "vertices" and sees == "all":
        return VertexLabels(graph, model, x, config.train, training)
    book, at = PartitionBook(graph.shard, graph.comm), None
    if sees != "all":
        at = MomentRows(graph, model, x, book, config.sample, sees, config.seed)
    if config.train.task == "vertices":
        return VertexLabels(graph, model, x, config.train, training, at)
    held_out, labelled, _ = worker.edges
    if labelled is not None:
        return EdgeLabels(graph, model, x, labelled, book, config.train, training, at)
    assert held_out is not None
    metric = "roc_auc" if config.train.metric == "auto" else config.train.metric
    return LinkPrediction(graph, model, x, held_out, book, config.link, config.seed, worker.decoder, metric, at)


def _steps(worker: Worker, x: Rows, objective: Learned) -> Steps:
    """What an epoch of the run consists of."""
    config, graph, model, plan = worker.config, worker.graph, worker.model, worker.config.exchange.plan
    if plan == "full":
        return objective.full_graph()
    book = PartitionBook(graph.shard, graph.comm)
    sees = sees_of(config.train, graph.shard)
    settings = book, config.sample, plan, config.seed, config.train.epochs
    if isinstance(objective, LinkPrediction):
        links = objective.source(config.sample.batch)
        return objective.steps(make_loader(graph, model, x, links, *settings, objective.left_out, sees), links)
    if isinstance(objective, EdgeLabels):
        edges = objective.source(config.sample.batch, config.seed)
        return objective.steps(make_loader(graph, model, x, edges, *settings, None, sees), edges)
    vertices = objective.source(book, config.sample.batch, config.seed)
    return objective.steps(make_loader(graph, model, x, vertices, *settings, None, sees), vertices)


def _pipeline(worker: Worker, steps: Steps) -> EpochRunner:
    """Runs the epochs where intervals of vertices go through them in a pipeline."""
    with optional("a run in intervals"):
        from weft.serverless.executor import PipelineExecutor

    config = worker.config
    assert isinstance(steps, FullGraph)
    if not isinstance(steps.loss_of, GlobalLoss):
        raise UserError(
            f"executor {config.executor.name} computes losses of classes, and the labels of "
            f"{worker.graph.shard.graph_name} are numbers: use another strategy than dorylus"
        )
    cache = config.train.cache_input
    return PipelineExecutor(
        worker.graph, worker.model, steps.x, steps.loss_of, config.executor, config.optim, config.seed,
        config.train.epochs, cache,
    )  # fmt: skip


def _write_trace(worker: Worker, trace: Trace) -> None:
    part = worker.folder.trace_part(worker.comm.worker)
    part.parent.mkdir(parents=True, exist_ok=True)
    trace.write(part)
    worker.comm.barrier("trace")
    if worker.comm.worker == 0:
        parts = sorted(worker.folder.path.glob("trace-*.json"))
        merge_files(parts, worker.folder.trace_file)
