"""The training loop of one worker: forward, backward, one all-reduce, step; evaluate, remember, checkpoint."""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from weft.aggregate import Adaptive, GraphView
from weft.aggregate.late import nothing_is_late
from weft.comm import KINDS, Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.layers import replicated_parameters
from weft.train.checkpoint import Progress, load_checkpoint, newest_valid, restore_exchange, save_checkpoint
from weft.train.evaluate import choose_metric, pick_masks, predict, score
from weft.train.loss import GlobalLoss
from weft.train.optim import OptimConfig, build_optimiser, learning_rate
from weft.train.runfolder import RunFolder
from weft.train.trace import Trace

WIRE = tuple(kind for kind in KINDS if kind != "control")


class TrainConfig(BaseModel):
    """How long, how judged, what is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(100, ge=1, description="passes over the graph")
    eval_every: int = Field(1, ge=1, description="epochs between two evaluations")
    patience: int | None = Field(None, ge=1, description="stop after so many epochs without a better one on validation")
    metric: str = Field("auto", description="auto, accuracy, macro_f1, micro_f1 or roc_auc; judged on validation")
    select: Literal["metric", "loss"] = Field("metric", description="what on validation says which epoch is best")
    class_weights: Literal["none", "balanced"] = Field("none", description="balanced: rare classes weigh more")
    split: int = Field(0, ge=0, description="which split, where a data set has several")
    precision: Literal["float32", "bfloat16", "float64"] = Field("float32", description="of rows and dense work")
    cache_input: bool = Field(True, description="aggregate constant input once, where that is exact")
    checkpoint_every: int = Field(10, ge=0, description="epochs between two checkpoints; 0: only at the end")
    trace_epochs: int = Field(3, ge=0, description="epochs, from the second on, whose timeline is recorded")


@dataclass
class Task:
    """One worker's share of a run: what it trains, on what, and where it writes (worker 0 alone does)."""

    view: GraphView
    model: nn.Module
    train: TrainConfig
    optim: OptimConfig
    folder: RunFolder
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None
    trace: Trace = field(default_factory=lambda: Trace(enabled=False))


@dataclass
class Outcome:
    status: Literal["finished", "interrupted"]
    metric: str
    progress: Progress
    values: dict[str, float]  # the metric on each split, with the best weights
    train_loss: float
    records: list[dict[str, Any]]
    last_weights: dict[str, Tensor]


def fit(task: Task, resume: bool = False) -> Outcome:
    """Trains until the epochs are done, patience ends or SIGTERM comes; leaves the best weights in the model."""
    view, model, config, comm = task.view, task.model, task.train, task.view.comm
    x, y, masks = inputs(view, model, config)
    metric = choose_metric(config.metric, y, view.shard.num_classes)
    train_rows = (masks["train"] & known(y)).nonzero().squeeze(1)
    loss_of = GlobalLoss(y, train_rows, view.shard.num_classes, config.class_weights, comm)
    if loss_of.count == 0:
        raise UserError(f"{view.shard.graph_name} has no training vertex with a known label: give it a train split")
    val_loss_of = None
    if config.select == "loss" and "val" in masks:
        val_rows = (masks["val"] & known(y)).nonzero().squeeze(1)
        val_loss_of = GlobalLoss(y, val_rows, view.shard.num_classes, "none", comm)
    optimiser = build_optimiser(task.optim, model)
    progress, best = Progress(), _weights(model)
    if resume:
        path, progress = newest_valid(task.folder.checkpoints)
        best = load_checkpoint(path, model, optimiser, view.global_ids)
        restore_exchange(path, view)
        if comm.worker == 0:
            task.folder.cut(progress.epoch)
    stop = _StopFlag()
    records: list[dict[str, Any]] = []
    stopped_early, last_saved, loss = False, progress.epoch, math.nan
    while progress.epoch < config.epochs and not stopped_early and not stop.seen:
        progress.epoch += 1
        comm.step = f"epoch {progress.epoch}"
        task.trace.enabled = 2 <= progress.epoch < 2 + config.trace_epochs or progress.epoch == config.epochs == 1
        with task.trace.span(f"epoch {progress.epoch}", "epoch", epoch=progress.epoch):
            record = _epoch(task, x, loss_of, optimiser, progress.epoch, stop)
            loss = record["train_loss"]
            if not math.isfinite(loss):
                _give_up(task, record)
            _adapt(task, record)
            if progress.epoch % config.eval_every == 0 or progress.epoch == config.epochs:
                _evaluate_epoch(task, x, y, masks, metric, val_loss_of, record)
                if _is_better(record, f"val_{metric}" if val_loss_of is None else "val_loss", progress):
                    best = _weights(model)
        if config.patience is not None and progress.epoch - progress.best_epoch >= config.patience:
            stopped_early = "val" in masks
        records.append(record)
        if comm.worker == 0:
            task.folder.append(record)
        task.on_epoch(record)
        if config.checkpoint_every and progress.epoch % config.checkpoint_every == 0:
            save_checkpoint(task.folder.checkpoints, model, optimiser, progress, best, view)
            last_saved = progress.epoch
    comm.step = "the end"
    if last_saved != progress.epoch or not records:
        save_checkpoint(task.folder.checkpoints, model, optimiser, progress, best, view)
    stop.restore()
    last = _weights(model)
    model.load_state_dict(best)
    values = score(predict(model, view, x), y, masks, metric, view)
    status: Literal["finished", "interrupted"] = "interrupted" if stop.seen else "finished"
    return Outcome(status, metric, progress, values, loss, records, last)


def inputs(view: GraphView, model: nn.Module, config: TrainConfig) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Input rows, targets and masks of this worker, in the run's precision; constant input is declared as such."""
    shard = view.shard
    if shard.y is None:
        raise UserError(f"{shard.graph_name} has no labels to train on: ingest it with --labels")
    masks = pick_masks(shard, config.split)
    if "train" not in masks:
        raise UserError(f"{shard.graph_name} has no training vertices: ingest it with a split")
    dtype = getattr(torch, config.precision)
    embedding: nn.Parameter | None = getattr(model, "embedding", None)
    if config.precision == "float64":
        model.double()
    if embedding is not None:
        return embedding, shard.y, masks
    assert shard.x is not None
    x = shard.x.to(view.comm.device, dtype)
    settings = getattr(model, "config", None)
    if getattr(settings, "row_normalise", False):
        x = x / x.abs().sum(1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    if config.cache_input and getattr(settings, "input_dropout", 0.0) == 0.0:
        view.hold_constant(x)
    return x, shard.y, masks


def known(y: Tensor) -> Tensor:
    """Which vertices have a target, bool [N]."""
    return (y >= 0).any(1) if y.dim() == 2 else y >= 0


def _epoch(
    task: Task, x: Tensor, loss_of: GlobalLoss, optimiser: torch.optim.Optimizer, epoch: int, stop: "_StopFlag"
) -> dict[str, Any]:
    """One step over the full graph. Every worker returns the same record."""
    view, comm, span = task.view, task.view.comm, task.trace.span
    rate = learning_rate(task.optim, epoch, task.train.epochs)
    for group in optimiser.param_groups:
        group["lr"] = rate
    clock, sent, waited = _Clock(), dict(comm.sent), comm.waited_seconds
    task.model.train()
    optimiser.zero_grad()
    view.noise.begin(epoch)
    with span("forward"), view.restricted():
        loss = loss_of(task.model(view, x))
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
        totals = _totals(comm, loss, stop, sent)
    clock.lap("all_reduce")
    with span("optimiser"):
        norm = _gradient_norm(task, comm)
        if task.optim.clip_norm is not None and norm > task.optim.clip_norm:
            torch._foreach_mul_(
                [p.grad for p in task.model.parameters() if p.grad is not None], task.optim.clip_norm / norm
            )
        optimiser.step()
    clock.lap("optimiser")
    return {
        "epoch": epoch,
        "seconds": clock.total(),
        "train_loss": float(totals[0]),
        "learning_rate": rate,
        "grad_norm": norm,
        "wire_bytes": {kind: int(count) for kind, count in zip(WIRE, totals[2:], strict=True)},
        "phase_seconds": clock.laps,
    }


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


def _totals(comm: Communicator, loss: Tensor, stop: "_StopFlag", sent: dict[str, int]) -> list[float]:
    """Loss, stop requests and this epoch's bytes by class, summed over the workers."""
    counts = [comm.sent[kind] - sent[kind] for kind in WIRE]
    totals = torch.tensor([loss.item(), float(stop.asked), *counts], dtype=torch.float64)
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


def _evaluate_epoch(
    task: Task,
    x: Tensor,
    y: Tensor,
    masks: dict[str, Tensor],
    metric: str,
    val_loss_of: GlobalLoss | None,
    record: dict[str, Any],
) -> None:
    started = time.perf_counter()
    with task.trace.span("evaluate"):
        logits = predict(task.model, task.view, x)
        values = score(logits, y, masks, metric, task.view)
        if val_loss_of is not None:
            loss = val_loss_of(logits).double().view(1)
            record["val_loss"] = float(task.view.comm.all_reduce(loss, "control", "validation loss"))
    record.update({f"{split}_{metric}": value for split, value in values.items()})
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
        self.laps[name], self._last = now - self._last, now

    def move(self, to: str, phases: tuple[str, ...], seconds: tuple[float, ...]) -> None:
        """Takes seconds out of phases and puts them into one of their own."""
        for phase, share in zip(phases, seconds, strict=True):
            self.laps[phase] -= share
        self.laps[to] = sum(seconds)

    def total(self) -> float:
        return self._last - self._start
