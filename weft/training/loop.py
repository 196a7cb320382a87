"""The training loop of one worker.

`fit` goes from epoch to epoch: it trains, evaluates, keeps the best weights, and writes records and checkpoints.
`_epoch` goes from step to step, and `_step` is forward, backward, one all-reduce of the gradients, and the optimiser.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import BYTE_CLASSES, EPOCH_BYTE_CLASSES, Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.layers import replicated_parameters
from weft.sample import MacrobatchLoader
from weft.training.checkpoint import save_checkpoint
from weft.training.clock import PhaseClock
from weft.training.epochs import EpochRunner
from weft.training.generation import Progress
from weft.training.metrics import lower_is_better
from weft.training.objective import Objective
from weft.training.optim import OptimConfig, build_optimiser, clip_gradients, gradient_norm, learning_rate
from weft.training.plain import plain
from weft.training.resume import go_on
from weft.training.runfolder import RunFolder
from weft.training.settings import TrainConfig
from weft.training.steps import Step, Steps
from weft.training.stop import StopRequest, stop_on_signals
from weft.training.trace import Trace

OnRecord = Callable[[dict[str, Any]], bool]  # of an epoch's record: whether training goes on


@dataclass
class Task:
    """One worker's share of a run: what it trains, on what, and where it writes (worker 0 alone does)."""

    graph: DistributedGraph
    model: nn.Module
    objective: Objective
    steps: Steps
    train: TrainConfig
    optim: OptimConfig
    folder: RunFolder
    settings: Mapping[str, Any]  # of the whole run, as they are written down
    identity: Mapping[str, Any]  # what makes it the same run: its graph, and settings that its numbers depend on
    on_step: Callable[[int, int, int], None] = lambda epoch, step, steps: None  # after each of an epoch's minibatches
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None
    trace: Trace = field(default_factory=lambda: Trace(enabled=False))
    on_record: OnRecord | None = (
        None  # after each epoch, on worker 0; the others have one that is not called, or none has
    )
    runner: EpochRunner | None = None  # goes through epochs in the place of this loop; None: this loop itself


@dataclass
class Outcome:
    """What training came to."""

    status: Literal["finished", "interrupted"]
    metric: str
    progress: Progress
    values: dict[str, float]  # the metric on each split, with the best weights
    records: list[dict[str, Any]]
    last_weights: dict[str, Tensor]
    loader: MacrobatchLoader | None = None  # of minibatches; None: full graph


def fit(task: Task, resume: bool = False) -> Outcome:
    """Trains until the epochs are done, patience or `on_record` ends it, or SIGTERM comes; leaves the best weights."""
    model, objective, config, comm = task.model, task.objective, task.train, task.graph.comm
    optimiser = build_optimiser(task.optim, model)
    progress, best = _begin(task, optimiser, resume)
    records: list[dict[str, Any]] = []
    last_saved, goes_on = progress.epoch, True
    with stop_on_signals() as stop:
        with _planning(task.steps, comm):
            while goes_on and not _is_over(progress, config, objective) and not stop.agreed:
                progress.epoch += 1
                comm.step = f"epoch {progress.epoch}"
                task.trace.enabled = _is_traced(progress.epoch, config)
                with task.trace.span(f"epoch {progress.epoch}", "epoch", epoch=progress.epoch):
                    if task.runner is None:
                        record = _epoch(task, optimiser, progress.epoch, stop)
                    else:
                        record = _epoch_of_runner(task, task.runner, progress.epoch, stop)
                    _end_epoch(task, record)
                    progress.train_loss = record["train_loss"]
                    evaluated = _is_evaluated(progress.epoch, config)
                    if evaluated:
                        _evaluate(task, record)
                    if (evaluated or config.eval_every == 0) and _is_better(record, objective.metric, progress):
                        best = _weights(model)
                records.append(record)
                if comm.worker == 0:
                    task.folder.append(record)
                task.on_epoch(record)
                if config.checkpoint_every and progress.epoch % config.checkpoint_every == 0:
                    _save(task, optimiser, progress, best)
                    last_saved = progress.epoch
                goes_on = _goes_on(task, record)
            comm.step = "the end"
        if last_saved != progress.epoch:
            _save(task, optimiser, progress, best)
    last = _weights(model)
    model.load_state_dict(best)
    values = objective.evaluate()[0] if config.eval_every else {}
    status: Literal["finished", "interrupted"] = "interrupted" if stop.agreed else "finished"
    return Outcome(status, objective.metric, progress, values, records, last, task.steps.loader)


@contextmanager
def _planning(steps: Steps, comm: Communicator) -> Iterator[None]:
    """Ends the planning of minibatches at the end of the block.

    After a failure only where there is one worker: with several, planning may wait for a worker that is lost, and the
    process ends anyway.
    """
    try:
        yield
    except BaseException:
        if comm.num_workers == 1:
            steps.close()
        raise
    steps.close()


def _begin(task: Task, optimiser: torch.optim.Optimizer, resume: bool) -> tuple[Progress, dict[str, Tensor]]:
    """Where training begins, and the best weights so far: at the start, or at the checkpoint that all workers chose."""
    found = go_on(task.folder.checkpoints, task.model, optimiser, task.graph, task.identity) if resume else None
    progress = Progress() if found is None else found.progress
    if resume and task.graph.comm.worker == 0:
        if found is None:
            print(f"note: {task.folder.path} has no checkpoint yet: it starts from the beginning", file=sys.stderr)
        task.folder.go_on(task.settings, progress.epoch)
    best = _weights(task.model) if found is None else found.best
    if task.runner is not None:
        notes, state = ({}, {}) if found is None else (found.notes, found.executor)
        task.runner.start(optimiser, progress.epoch, notes, state)
    return progress, best


def _is_over(progress: Progress, config: TrainConfig, objective: Objective) -> bool:
    """Whether the epochs are done, or too many have passed without a better one on validation."""
    if progress.epoch >= config.epochs:
        return True
    if config.patience is None or not objective.has_validation:
        return False
    return progress.epoch - progress.best_epoch >= config.patience


def _goes_on(task: Task, record: dict[str, Any]) -> bool:
    """What worker 0 is told of this epoch by whoever watches the run; all workers agree on it."""
    if task.on_record is None:
        return True
    comm = task.graph.comm
    answer = torch.tensor([int(task.on_record(plain(record))) if comm.worker == 0 else 1])
    return bool(comm.all_reduce(answer, "control", "whether training goes on", "min"))


def _is_traced(epoch: int, config: TrainConfig) -> bool:
    """Whether the timeline of this epoch is recorded: from the second on, or the only one."""
    return 2 <= epoch < 2 + config.trace_epochs or epoch == config.epochs == 1


def _is_evaluated(epoch: int, config: TrainConfig) -> bool:
    every = config.eval_every
    return every > 0 and (epoch % every == 0 or epoch == config.epochs)


def _epoch(task: Task, optimiser: torch.optim.Optimizer, epoch: int, stop: StopRequest) -> dict[str, Any]:
    """One pass over the training vertices. Every worker returns the same record."""
    comm, steps = task.graph.comm, task.steps
    rate = learning_rate(task.optim, epoch, task.train.epochs)
    for group in optimiser.param_groups:
        group["lr"] = rate
    clock, sent = PhaseClock(), dict(comm.sent)
    task.model.train()
    loss, square = 0.0, 0.0
    for count, step in enumerate(steps.epoch(epoch), 1):
        if steps.loader is not None:
            clock.lap("plan")
        share, norm = _step(task, step, optimiser, clock)
        loss += share * step.weight
        square += (norm * norm - square) / count
        if steps.loader is not None:
            task.on_step(epoch, count, steps.loader.steps)
    totals = _totals(comm, loss, stop, sent, steps.planned_bytes())
    clock.lap("all_reduce")
    return {
        "epoch": epoch,
        "seconds": clock.total(),
        "train_loss": float(totals[0]),
        "learning_rate": rate,
        "grad_norm": math.sqrt(square),
        "wire_bytes": _wire_bytes(totals),
        "phase_seconds": clock.laps,
    }


def _epoch_of_runner(task: Task, runner: EpochRunner, epoch: int, stop: StopRequest) -> dict[str, Any]:
    """The same record of an epoch that a runner went through."""
    comm = task.graph.comm
    sent = dict(comm.sent)
    record = runner.epoch(epoch)
    totals = _totals(comm, 0.0, stop, sent, dict.fromkeys(BYTE_CLASSES, 0))
    return {
        "epoch": epoch,
        **record,
        "learning_rate": learning_rate(task.optim, epoch, task.train.epochs),
        "wire_bytes": _wire_bytes(totals),
    }


def _save(task: Task, optimiser: torch.optim.Optimizer, progress: Progress, best: dict[str, Tensor]) -> None:
    notes = {} if task.runner is None else task.runner.before_checkpoint()
    state = {} if task.runner is None else task.runner.state()
    folder = task.folder.checkpoints
    save_checkpoint(folder, task.model, optimiser, progress, best, task.graph, task.identity, notes, state)


def _step(task: Task, step: Step, optimiser: torch.optim.Optimizer, clock: PhaseClock) -> tuple[float, float]:
    """Forward, backward, one all-reduce, and the optimiser; returns this worker's share of the loss, and the norm."""
    comm, span = task.graph.comm, task.trace.span
    waited = comm.waited_seconds
    optimiser.zero_grad()
    with span("forward"):
        loss = step.loss()
    clock.lap("forward")
    forward_waited = comm.waited_seconds
    with span("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    clock.lap("backward")
    clock.move(
        "exchange_wait", ("forward", "backward"), (forward_waited - waited, comm.waited_seconds - forward_waited)
    )
    with span("all-reduce", "communicate"):
        all_reduce_gradients(comm, replicated_parameters(task.model))
        share = loss.item()
    clock.lap("all_reduce")
    with span("optimiser"):
        norm = gradient_norm(task.model, comm)
        clip_gradients(task.model, norm, task.optim.clip_norm)
        optimiser.step()
    clock.lap("optimiser")
    return share, norm


def _end_epoch(task: Task, record: dict[str, Any]) -> None:
    """Ends a run whose loss is no number; else the format chooses how rows travel from here on."""
    if not math.isfinite(record["train_loss"]):
        _give_up(task, record)
    started = time.perf_counter_ns()
    chosen = task.graph.format.end_epoch(record["epoch"], task.graph.comm)
    if chosen is None:
        return
    task.trace.record("choose bits", "communicate", started, time.perf_counter_ns())
    record["seconds"] += chosen.seconds
    record["phase_seconds"]["assign"] = chosen.seconds
    record["bits"] = {
        layer: {
            direction: {str(bits): rows for bits, rows in by_bits.items()} for direction, by_bits in directions.items()
        }
        for layer, directions in chosen.rows.items()
    }


def _totals(
    comm: Communicator, loss: float, stop: StopRequest, sent: dict[str, int], planned: dict[str, int]
) -> list[float]:
    """Loss, stop requests and this epoch's bytes by class, summed over the workers, who agree by them on stopping."""
    counts = [comm.sent[name] - sent[name] + planned[name] for name in EPOCH_BYTE_CLASSES]
    totals = torch.tensor([loss, float(stop.asked), *counts], dtype=torch.float64)
    comm.all_reduce(totals, "control", "epoch totals")
    stop.agreed = bool(totals[1] > 0)
    values: list[float] = totals.tolist()
    return values


def _wire_bytes(totals: list[float]) -> dict[str, int]:
    return {name: int(count) for name, count in zip(EPOCH_BYTE_CLASSES, totals[2:], strict=True)}


def _evaluate(task: Task, record: dict[str, Any]) -> None:
    """Adds the metric on each split to the record, and the loss on validation where that selects the best epoch."""
    if task.graph.comm.worker == 0:
        task.folder.begin()
    started = time.perf_counter()
    with task.trace.span("evaluate"):
        values, val_loss = task.objective.evaluate()
    if val_loss is not None:
        record["val_loss"] = val_loss
    record.update({f"{split}_{task.objective.metric}": value for split, value in values.items()})
    record["phase_seconds"]["evaluate"] = time.perf_counter() - started


def _give_up(task: Task, record: dict[str, Any]) -> None:
    if task.graph.comm.worker == 0:
        task.folder.append(record)  # the report shows where it went wrong
    epoch, loss = record["epoch"], record["train_loss"]
    raise UserError(f"the loss became {loss} in epoch {epoch}: lower optim.lr or set optim.clip_norm")


def _is_better(record: dict[str, Any], metric: str, progress: Progress) -> bool:
    """Whether this epoch is the best so far on validation, of equal ones the last; without validation the last one."""
    name = "val_loss" if "val_loss" in record else f"val_{metric}"
    value = record.get(name)
    if value is not None:
        value = -value if name == "val_loss" or lower_is_better(metric) else value
        if progress.best_value is not None and value < progress.best_value:
            return False
    progress.best_epoch, progress.best_value = progress.epoch, value
    return True


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
