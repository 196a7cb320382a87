"""What a run learns and how it is judged: the classes of vertices, or which edges exist."""

from typing import Protocol

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.errors import UserError
from weft.graph.splits import known
from weft.sample import SampleConfig
from weft.train.evaluate import choose_metric, pick_masks, predict, score
from weft.train.loss import GlobalLoss
from weft.train.minibatches import MakeMinibatches, vertex_seeds
from weft.train.settings import TrainConfig
from weft.train.steps import FullGraph, Sampled, Steps


class Objective(Protocol):
    metric: str
    steps: Steps
    has_validation: bool

    def judge(self) -> tuple[dict[str, float], float | None]:
        """The metric on each split, over the whole graph with nothing dropped; and the loss on validation, if asked."""
        ...

    def outputs(self) -> Tensor:
        """What the model says of own vertices, [N, ...]."""
        ...


class Vertices:
    """The classes of vertices."""

    def __init__(
        self,
        view: GraphView,
        model: nn.Module,
        x: Tensor,
        config: TrainConfig,
        minibatches: MakeMinibatches | None = None,
        sample: SampleConfig | None = None,
        seed: int = 0,
        training: bool = True,
    ) -> None:
        self._view, self._model, self._x = view, model, x
        self._y, self._masks = targets(view, config)
        self.metric = choose_metric(config.metric, self._y, view.shard.num_classes)
        self.has_validation = "val" in self._masks
        self._val_loss: GlobalLoss | None = None
        if not training:
            return
        comm, classes = view.comm, view.shard.num_classes
        rows = (self._masks["train"] & known(self._y)).nonzero().squeeze(1)
        loss_of = GlobalLoss(self._y, rows, classes, config.class_weights, comm)
        if loss_of.count == 0:
            raise UserError(f"{view.shard.graph_name} has no training vertex with a known label: give it a train split")
        if config.select == "loss" and self.has_validation:
            val_rows = (self._masks["val"] & known(self._y)).nonzero().squeeze(1)
            self._val_loss = GlobalLoss(self._y, val_rows, classes, "none", comm)
        self.steps: Steps = FullGraph(view, model, x, loss_of)
        if minibatches is not None:
            assert sample is not None
            source = vertex_seeds(rows, view.global_ids, sample.batch, seed)
            self.steps = Sampled(view, model, minibatches(x, source), self._y, loss_of)

    def judge(self) -> tuple[dict[str, float], float | None]:
        logits = self.outputs()
        values = score(logits, self._y, self._masks, self.metric, self._view)
        if self._val_loss is None:
            return values, None
        loss = self._val_loss(logits).double().view(1)
        return values, float(self._view.comm.all_reduce(loss, "control", "validation loss"))

    def outputs(self) -> Tensor:
        return predict(self._model, self._view, self._x)


def input_rows(view: GraphView, model: nn.Module, config: TrainConfig) -> Tensor:
    """Input rows of this worker, in the run's precision; constant input is declared as such."""
    shard = view.shard
    dtype = getattr(torch, config.precision)
    embedding: nn.Parameter | None = getattr(model, "embedding", None)
    if config.precision == "float64":
        model.double()
    if embedding is not None:
        return embedding
    assert shard.x is not None
    x = shard.x.to(view.comm.device, dtype)
    settings = getattr(model, "config", None)
    if getattr(settings, "row_normalise", False):
        x = x / x.abs().sum(1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    if config.cache_input and getattr(settings, "input_dropout", 0.0) == 0.0:
        view.hold_constant(x)
    return x


def targets(view: GraphView, config: TrainConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Targets and masks of this worker."""
    shard = view.shard
    if shard.y is None:
        raise UserError(f"{shard.graph_name} has no labels to train on: ingest it with --labels")
    masks = pick_masks(shard, config.split)
    if "train" not in masks:
        raise UserError(f"{shard.graph_name} has no training vertices: ingest it with a split")
    return shard.y, masks
