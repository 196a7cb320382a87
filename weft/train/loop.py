"""The training loop of one worker: forward, backward, one all-reduce, step; evaluate, remember, checkpoint."""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from weft.aggregate import Adaptive, GraphView
from weft.aggregate.late import nothing_is_late
from weft.comm import KINDS, Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.layers import replicated_parameters
from weft.sample import Minibatches
from weft.train.checkpoint import Progress, load_checkpoint, newest_valid, restore_exchange, save_checkpoint
from weft.train.objective import Objective
from weft.train.optim import OptimConfig, build_optimiser, learning_rate
from weft.train.runfolder import RunFolder
from weft.train.settings import TrainConfig
from weft.train.steps import Step, Steps
from weft.train.trace import Trace

WIRE = tuple(kind for kind in KINDS if kind != "control")


class Executor(Protocol):
    """Who goes through epochs where it is not this loop, pass by pass: intervals in a pipeline."""

    def start(self, optimiser: torch.optim.Optimizer, epoch: int) -> None:
        """Begins after this epoch."""
        ...

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Goes on until the weights hold this epoch's update; its record, alike on every worker."""
        ...

    def before_checkpoint(self) -> dict[str, Any]:
        """Makes weights and optimiser whole on every worker; what to note in the checkpoint's manifest."""
        ...

    def close(self) -> None:
        """Ends whatever it started, also where training failed."""
        ...


@dataclass
class Task:
    """One worker's share of a run: what it trains, on what, and where it writes (worker 0 alone does)."""

    view: GraphView
    model: nn.Module
    objective: Objective
    train: TrainConfig
    optim: OptimConfig
    folder: RunFolder
    on_step: Callable[[int, int, int], None] = lambda epoch, step, steps: None  # after each of an epoch's minibatches
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None
    trace: Trace = field(default_factory=lambda: Trace(enabled=False))
    executor: Executor | None = None  # None: this loop itself


@dataclass
class Outcome:
    status: Literal["finished", "interrupted"]
    metric: str
    progress: Progress
    values: dict[str, float]  # the metric on each split, with the best weights
    train_loss: float
    records: list[dict[str, Any]]
    last_weights: dict[str, Tensor]
    minibatches: Minibatches | None = None  # None: full graph


def fit(task: Task, resume: bool = False) -> Outcome:
    """Trains until the epochs are done, patience ends or SIGTERM comes; leaves the best weights in the model."""
    view, model, objective, config, comm = task.view, task.model, task.objective, task.train, task.view.comm
    metric, steps = objective.metric, objective.steps
    optimiser = build_optimiser(task.optim, model)
    progress, best = Progress(), _weights(model)
    if resume:
        path, progress = newest_valid(task.folder.checkpoints)
        best = load_checkpoint(path, model, optimiser, view.global_ids)
        restore_exchange(path, view)
        if comm.worker == 0:
            task.folder.cut(progress.epoch)
    if task.executor is not None:
        task.executor.start(optimiser, progress.epoch)
    stop = _StopFlag()
    records: list[dict[str, Any]] = []
    stopped_early, last_saved, loss = False, progress.epoch, math.nan
    while progress.epoch < config.epochs and not stopped_early and not stop.seen:
        progress.epoch += 1
        comm.step = f"epoch {progress.epoch}"
        task.trace.enabled = 2 <= progress.epoch < 2 + config.trace_epochs or progress.epoch == config.epochs == 1
        with task.trace.span(f"epoch {progress.epoch}", "epoch", epoch=progress.epoch):
            if task.executor is None:
                record = _epoch(task, steps, optimiser, progress.epoch, stop)
            else:
                record = _executed(task, task.executor, progress.epoch, stop)
            loss = record["train_loss"]
            if not math.isfinite(loss):
                _give_up(task, record)
            _adapt(task, record)
            every = config.eval_every
            judged = every > 0 and (progress.epoch % every == 0 or progress.epoch == config.epochs)
            if judged:
                _evaluate_epoch(task, record)
            name = "val_loss" if "val_loss" in record else f"val_{metric}"
            if (judged or every == 0) and _is_better(record, name, progress):
                best = _weights(model)
        if config.patience is not None and progress.epoch - progress.best_epoch >= config.patience:
            stopped_early = objective.has_validation
        records.append(record)
        if comm.worker == 0:
            task.folder.append(record)
        task.on_epoch(record)
        if config.checkpoint_every and progress.epoch % config.checkpoint_every == 0:
            _save(task, optimiser, progress, best)
            last_saved = progress.epoch
    comm.step = "the end"
    steps.close()
    if last_saved != progress.epoch or not records:
        _save(task, optimiser, progress, best)
    stop.restore()
    last = _weights(model)
    model.load_state_dict(best)
    values = objective.judge()[0] if config.eval_every else {}
    status: Literal["finished", "interrupted"] = "interrupted" if stop.seen else "finished"
    return Outcome(status, metric, progress, values, loss, records, last, steps.minibatches)


def _epoch(task: Task, steps: Steps, optimiser: torch.optim.Optimizer, epoch: int, stop: "_StopFlag") -> dict[str, Any]:
    """One pass over the training vertices. Every worker returns the same record."""
    comm = task.view.comm
    rate = learning_rate(task.optim, epoch, task.train.epochs)
    for group in optimiser.param_groups:
        group["lr"] = rate
    clock, sent = _Clock(), dict(comm.sent)
    task.model.train()
    loss, square = 0.0, 0.0
    for count, step in enumerate(steps.epoch(epoch), 1):
        if steps.minibatches is not None:
            clock.lap("plan")
        share, norm = _step(task, step, optimiser, clock)
        loss += share * step.weight
        square += (norm * norm - square) / count
        if steps.minibatches is not None:
            task.on_step(epoch, count, steps.minibatches.steps)
    totals = _totals(comm, loss, stop, sent, steps.planned_bytes())
    clock.lap("all_reduce")
    return {
        "epoch": epoch,
        "seconds": clock.total(),
        "train_loss": float(totals[0]),
        "learning_rate": rate,
        "grad_norm": math.sqrt(square),
        "wire_bytes": {kind: int(count) for kind, count in zip(WIRE, totals[2:], strict=True)},
        "phase_seconds": clock.laps,
    }


def _executed(task: Task, executor: Executor, epoch: int, stop: "_StopFlag") -> dict[str, Any]:
    """The same record, of an epoch that somebody else went through."""
    comm = task.view.comm
    sent = dict(comm.sent)
    record = executor.epoch(epoch)
    totals = _totals(comm, 0.0, stop, sent, dict.fromkeys(KINDS, 0))
    return {
        "epoch": epoch,
        **record,
        "learning_rate": learning_rate(task.optim, epoch, task.train.epochs),
        "wire_bytes": {kind: int(count) for kind, count in zip(WIRE, totals[2:], strict=True)},
    }


def _save(task: Task, optimiser: torch.optim.Optimizer, progress: Progress, best: dict[str, Tensor]) -> None:
    notes = {} if task.executor is None else task.executor.before_checkpoint()
    save_checkpoint(task.folder.checkpoints, task.model, optimiser, progress, best, task.view, notes)


def _step(task: Task, step: Step, optimiser: torch.optim.Optimizer, clock: "_Clock") -> tuple[float, float]:
    """Forward, backward, one all-reduce, and the optimiser; returns this worker's share of the loss, and the norm."""
    comm, span = task.view.comm, task.trace.span
    waited = comm.waited_seconds
    optimiser.zero_grad()
    with span("forward"):
        loss = step.loss()
    clock.lap("forward")
    forward_waited = comm.waited_seconds
    with span("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
        nothing_is_late()
    clock.lap("backward")
    clock.move(
        "exchange_wait", ("forward", "backward"), (forward_waited - waited, comm.waited_seconds - forward_waited)
    )
    with span("all-reduce", "communicate"):
        all_reduce_gradients(comm, replicated_parameters(task.model))
        share = loss.item()
    clock.lap("all_reduce")
    with span("optimiser"):
        norm = _gradient_norm(task, comm)
        if task.optim.clip_norm is not None and norm > task.optim.clip_norm:
            torch._foreach_mul_(
                [p.grad for p in task.model.parameters() if p.grad is not None], task.optim.clip_norm / norm
            )
        optimiser.step()
    clock.lap("optimiser")
    return share, norm


def _adapt(task: Task, record: dict[str, Any]) -> None:
    """Chooses anew with how many bits rows travel, where they adapt and it is time to."""
    format, comm = task.view.format, task.view.comm
    if not isinstance(format, Adaptive):
        return
    with task.trace.span("assign widths", "communicate"):
        seconds = format.end_epoch(record["epoch"], comm)
    if seconds is None:
        return
    record["seconds"] += seconds
    record["phase_seconds"]["assign"] = seconds
    widths = format.histogram()
    places = [(layer, direction, bits) for layer in widths for direction in widths[layer] for bits in (2, 4, 8)]
    counts = torch.tensor([widths[layer][direction][bits] for layer, direction, bits in places])
    comm.all_reduce(counts, "control", "counts of widths")
    record["widths"] = {}
    for (layer, direction, bits), count in zip(places, counts.tolist(), strict=True):
        record["widths"].setdefault(layer, {}).setdefault(direction, {})[str(bits)] = count


def _totals(
    comm: Communicator, loss: float, stop: "_StopFlag", sent: dict[str, int], planned: dict[str, int]
) -> list[float]:
    """Loss, stop requests and this epoch's bytes by class, summed over the workers."""
    counts = [comm.sent[kind] - sent[kind] + planned[kind] for kind in WIRE]
    totals = torch.tensor([loss, float(stop.asked), *counts], dtype=torch.float64)
    comm.all_reduce(totals, "control", "epoch totals")
    stop.seen = bool(totals[1] > 0)
    values: list[float] = totals.tolist()
    return values


def _gradient_norm(task: Task, comm: Communicator) -> float:
    """Norm of the global gradient; rows that one worker alone owns are summed over the workers."""
    replicated = [p.grad for p in replicated_parameters(task.model) if p.grad is not None]
    square = sum(float(n) ** 2 for n in torch._foreach_norm(replicated)) if replicated else 0.0
    embedding: nn.Parameter | None = getattr(task.model, "embedding", None)
    if embedding is not None and embedding.grad is not None:
        own = embedding.grad.double().square().sum().view(1)
        comm.all_reduce(own, "control", "gradient norm")
        square += float(own)
    return math.sqrt(square)


def _evaluate_epoch(task: Task, record: dict[str, Any]) -> None:
    started = time.perf_counter()
    with task.trace.span("evaluate"):
        values, val_loss = task.objective.judge()
    if val_loss is not None:
        record["val_loss"] = val_loss
    record.update({f"{split}_{task.objective.metric}": value for split, value in values.items()})
    record["phase_seconds"]["evaluate"] = time.perf_counter() - started


def _give_up(task: Task, record: dict[str, Any]) -> None:
    if task.view.comm.worker == 0:
        task.folder.append(record)  # the report shows where it went wrong
    epoch, loss = record["epoch"], record["train_loss"]
    raise UserError(f"the loss became {loss} in epoch {epoch}: lower optim.lr or set optim.clip_norm")


def _is_better(record: dict[str, Any], name: str, progress: Progress) -> bool:
    """Whether this epoch is the best so far on validation, of equal ones the last; without validation the last one."""
    value = record.get(name)
    if value is not None:
        value = -value if name == "val_loss" else value
        if progress.best_value is not None and value < progress.best_value:
            return False
    progress.best_epoch, progress.best_value = progress.epoch, value
    return True


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class _StopFlag:
    """SIGTERM and SIGINT ask for a stop after this epoch; all workers agree on which epoch that is."""

    def __init__(self) -> None:
        self.asked = self.seen = False
        self._before: dict[int, Any] = {}
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread: nobody sends us signals
            pass

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Clock:
    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = self.laps.get(name, 0.0) + now - self._last, now

    def move(self, to: str, phases: tuple[str, ...], seconds: tuple[float, ...]) -> None:
        """Takes seconds out of phases and puts them into one of their own."""
        for phase, share in zip(phases, seconds, strict=True):
            self.laps[phase] -= share
        self.laps[to] = self.laps.get(to, 0.0) + sum(seconds)

    def total(self) -> float:
        return self._last - self._start
