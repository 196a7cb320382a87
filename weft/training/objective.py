"""What a run learns and how that is evaluated: the labels of vertices or edges, or which edges exist."""

from typing import Protocol

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.graph.splits import known
from weft.graph.typedrows import Rows, TypedRows
from weft.graph.types import GraphTypes
from weft.layers import learns_columns
from weft.sample import MacrobatchLoader, PartitionBook, VertexSource
from weft.training.evaluate import pick_masks, predict
from weft.training.settings import TrainConfig
from weft.training.steps import FullGraph, VertexSteps
from weft.training.targets import RowLoss, make_targets
from weft.training.timed import MomentRows, check_known, own_times


class Objective(Protocol):
    metric: str
    has_validation: bool
    ids: Tensor  # int64, of what `outputs` has rows of: vertices by global id, or edges by their number

    def evaluate(self) -> tuple[dict[str, float], float | None]:
        """The metric on each split, over the whole graph with nothing dropped; and the loss on validation, if asked."""
        ...

    def outputs(self) -> Tensor:
        """What the model says of own vertices or edges, [N, ...]."""
        ...


class VertexLabels:
    """The labels of vertices: classes or numbers."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        x: Rows,
        config: TrainConfig,
        training: bool = True,
        at: MomentRows | None = None,
    ) -> None:
        """Without `training` it can be evaluated alone, and needs no training vertices with a known label.

        `at`: what the model says of vertices at their own times; None: of vertices that see all edges.
        """
        self._graph, self._model, self._x, self.ids = graph, model, x, graph.global_ids
        y, self._masks = labels_and_masks(graph, config)
        self._at, self._times = at, None if at is None else own_times(graph.shard)
        if self._times is not None:
            check_known(self._times, self._in_splits, graph.shard)
        self._targets = make_targets(y, graph.shard.num_classes, config, graph, model)
        self.metric = self._targets.metric
        self.has_validation = "val" in self._masks
        self._val_loss: RowLoss | None = None
        if not training:
            return
        self._rows = (self._masks["train"] & known(y)).nonzero().squeeze(1)
        self._targets.fit(self._rows)
        self._loss_of = self._targets.loss(self._rows)
        if self._loss_of.count == 0:
            raise UserError(
                f"{graph.shard.graph_name} has no training vertex with a known label: give it a train split"
            )
        if config.select == "loss" and self.has_validation:
            val_rows = (self._masks["val"] & known(y)).nonzero().squeeze(1)
            self._val_loss = self._targets.loss(val_rows, weighted=False)

    def source(self, book: PartitionBook, batch: int, seed: int) -> VertexSource:
        """The training vertices as seeds, `batch` a step."""
        graph = self._graph
        return VertexSource(self._rows, graph.global_ids, batch, seed, graph.comm, book.own.start, self._times)

    def full_graph(self) -> FullGraph:
        """Epochs of one step over the whole graph."""
        return FullGraph(self._graph, self._model, self._x, self._loss_of)

    def steps(self, loader: MacrobatchLoader, source: VertexSource) -> VertexSteps:
        """Epochs of a step for each minibatch; the loader's are those of the source."""
        return VertexSteps(self._graph, self._model, loader, source, self._targets.learned, self._loss_of)

    @property
    def _in_splits(self) -> Tensor:
        """Own vertices that are in a split, bool [N]."""
        return torch.stack([*self._masks.values()]).any(0)

    def _predicted(self, which: Tensor | None = None) -> Tensor:
        """What the model says of own vertices, or of those among them that are asked for."""
        if self._at is None or self._times is None:
            return predict(self._model, self._graph, self._x)
        return self._at.of_own(self._times, which)

    def evaluate(self) -> tuple[dict[str, float], float | None]:
        out = self._predicted(self._in_splits)
        values = self._targets.score(out, self._masks)
        if self._val_loss is None:
            return values, None
        loss = self._val_loss(out).double().view(1)
        return values, float(self._graph.comm.all_reduce(loss, "control", "validation loss"))

    def outputs(self) -> Tensor:
        return self._targets.predictions(self._predicted())


def input_rows(graph: DistributedGraph, model: nn.Module, config: TrainConfig) -> Rows:
    """Input rows of this worker, in the run's precision; constant input is declared as such."""
    shard = graph.shard
    dtype = getattr(torch, config.precision)
    embedding: nn.Parameter | None = getattr(model, "embedding", None)
    if config.precision == "float64":
        model.double()
    settings = getattr(model, "config", None)
    normalises, learned = getattr(settings, "row_normalise", False), learns_columns(model)
    if learned and dtype == torch.bfloat16:
        raise UserError("train.precision=bfloat16 rounds the numbers of learned columns: use float32")
    if learned and normalises:
        raise UserError("model.row_normalise divides the numbers of learned columns, too: leave it out")
    if shard.types is not None:
        return _typed_rows(graph, shard.types, embedding, dtype, normalises)
    if embedding is not None:
        return embedding
    assert shard.x is not None
    x = shard.x.to(graph.comm.device, dtype)
    if normalises:
        x = _normalised(x)
    if config.cache_input and not learned and getattr(settings, "input_dropout", 0.0) == 0.0:
        graph.hold_constant(x)
    return x


def _typed_rows(
    graph: DistributedGraph, types: GraphTypes, learned: Tensor | None, dtype: torch.dtype, normalises: bool
) -> TypedRows:
    """Features of each type, as they are; and learned rows of vertices without."""
    shard, blocks = graph.shard, []
    assert shard.vertex_type is not None
    for kind, width in enumerate(types.widths):
        x = shard.features_of(kind) if width else None
        x = None if x is None else x.to(graph.comm.device, dtype)
        blocks.append(_normalised(x) if normalises and x is not None else x)
    return TypedRows.of(shard.vertex_type.to(graph.comm.device), blocks, learned, dtype)


def _normalised(x: Tensor) -> Tensor:
    """Each row divided by the sum of its sizes."""
    return x / x.abs().sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def labels_and_masks(graph: DistributedGraph, config: TrainConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Labels and masks of this worker."""
    shard = graph.shard
    if shard.y is None:
        raise UserError(f"{shard.graph_name} has no labels to train on: ingest it with --labels")
    masks = pick_masks(shard, config.split)
    if "train" not in masks:
        raise UserError(f"{shard.graph_name} has no training vertices: ingest it with a split")
    return shard.y, masks
