"""What a run learns and how it is judged: the classes of vertices, or which edges exist."""

import math
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.comm import Communicator
from weft.errors import UserError
from weft.kernels.reference import splitmix64
from weft.partition import Shard
from weft.partition.shard import filter_csr, row_numbers
from weft.sample import Links, SampleConfig, Standing, Store
from weft.sample.seeds import edge_key
from weft.sample.store import Column
from weft.train.evaluate import choose_metric, from_scores, pick_masks, predict, score
from weft.train.loss import GlobalLoss
from weft.train.minibatches import MakeMinibatches, vertex_seeds
from weft.train.settings import LinkConfig, TrainConfig
from weft.train.steps import FullGraph, LinkPasses, Sampled, Steps

_HELD_OUT = 0x68656C64  # tells the draw of held-out edges from others


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
        if not training:
            return
        comm, classes = view.comm, view.shard.num_classes
        rows = (self._masks["train"] & known(self._y)).nonzero().squeeze(1)
        loss_of = GlobalLoss(self._y, rows, classes, config.class_weights, comm)
        if loss_of.count == 0:
            raise UserError(f"{view.shard.graph_name} has no training vertex with a known label: give it a train split")
        self._val_loss: GlobalLoss | None = None
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
        val_loss = getattr(self, "_val_loss", None)
        if val_loss is None:
            return values, None
        loss = val_loss(logits).double().view(1)
        return values, float(self._view.comm.all_reduce(loss, "control", "validation loss"))

    def outputs(self) -> Tensor:
        return predict(self._model, self._view, self._x)


class Edges:
    """Which pairs of vertices are edges: scores are products of the rows that the model gives them."""

    metric = "roc_auc"

    def __init__(
        self,
        view: GraphView,
        model: nn.Module,
        x: Tensor,
        held: "HeldOut",
        config: LinkConfig,
        minibatches: MakeMinibatches | None,
        sample: SampleConfig,
        seed: int,
    ) -> None:
        self._view, self._model, self._x, self._held = view, model, x, held
        self._config, self._seed = config, seed
        self.has_validation = config.val > 0
        self._standing = Standing(view.shard, view.comm)
        if minibatches is None:
            return

        def source(standing: Standing, comm: Communicator) -> Links:
            ends = Ends.of(view.shard, standing)
            return ends.links(standing, sample.batch, config.negatives, seed, comm)

        self.steps: Steps = LinkPasses(view, model, minibatches(x, source))

    def judge(self) -> tuple[dict[str, float], float | None]:
        rows = self.outputs().float()
        store = Store(self._view.comm, self._standing, {"rows": Column(rows, "hidden_forward")})
        values = {}
        for split, ends in (("val", self._held.val), ("test", self._held.test)):
            links = ends.links(self._standing, max(1, ends.count), 1, self._seed, self._view.comm)
            pairs = [links.pairs(0, step) for step in range(links.steps)]
            heads, tails, exist = (torch.cat(column) for column in zip(*pairs, strict=True))
            fetched = store.fetch([heads])
            scores = (fetched.of(0, "rows") * rows[tails.long() - self._standing.own.start]).sum(1, keepdim=True)
            values[split] = from_scores(scores, exist.long(), self._view)
        return {split: value for split, value in values.items() if not math.isnan(value)}, None

    def outputs(self) -> Tensor:
        return predict(self._model, self._view, self._x)


class Ends:
    """The two ends of some in-edges of own vertices: where they stand, and their global ids."""

    def __init__(self, heads: Tensor, tails: Tensor, head_ids: Tensor, tail_ids: Tensor) -> None:
        self.heads, self.tails, self.head_ids, self.tail_ids = heads, tails, head_ids, tail_ids
        self.count = heads.numel()

    @staticmethod
    def of(shard: Shard, standing: Standing) -> "Ends":
        """Those of all of a shard's edges."""
        own = torch.arange(standing.own.start, standing.own.stop, dtype=torch.int32)
        heads, tails, head_ids, tail_ids = [], [], [], []
        for csr, where, ids in (
            (shard.local, own, shard.global_ids),
            (shard.remote, standing.of_halo(shard), shard.halo_ids),
        ):
            rows, columns = row_numbers(csr.indptr), csr.indices.long()
            heads.append(where[columns])
            tails.append(own[rows])
            head_ids.append(ids[columns])
            tail_ids.append(shard.global_ids[rows])
        return Ends(torch.cat(heads), torch.cat(tails), torch.cat(head_ids), torch.cat(tail_ids))

    def pick(self, which: Tensor) -> "Ends":
        return Ends(self.heads[which], self.tails[which], self.head_ids[which], self.tail_ids[which])

    def links(self, standing: Standing, batch: int, negatives: int, seed: int, comm: Communicator) -> Links:
        return Links(self.heads, self.tails, self.head_ids, self.tail_ids, standing, batch, negatives, seed, comm)


class HeldOut:
    """Edges that training does not see, chosen by a hash of their ends: both directions go together."""

    def __init__(self, shard: Shard, comm: Communicator, config: LinkConfig, seed: int) -> None:
        if config.val + config.test >= 1.0:
            raise UserError(f"link.val {config.val} and link.test {config.test} leave no edge to train on")
        ends = Ends.of(shard, Standing(shard, comm))
        low = torch.minimum(ends.head_ids, ends.tail_ids)
        high = torch.maximum(ends.head_ids, ends.tail_ids)
        draw = ((splitmix64(edge_key(low, high) ^ (seed ^ _HELD_OUT)) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
        self.val, self.test = ends.pick(draw < config.val), ends.pick(draw >= 1.0 - config.test)
        keep = (draw >= config.val) & (draw < 1.0 - config.test)
        count = comm.all_reduce(keep.sum().view(1), "control", "edges to train on")
        if not int(count):
            raise UserError(f"{shard.graph_name} has no edge left to train on: hold out fewer (link.val, link.test)")
        self.keep_local, self.keep_remote = keep[: shard.local.num_edges], keep[shard.local.num_edges :]

    def without(self, shard: Shard) -> Shard:
        """The shard with the edges that training may see."""
        return replace(
            shard,
            local=filter_csr(shard.local, self.keep_local),
            remote=filter_csr(shard.remote, self.keep_remote),
        )


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


def known(y: Tensor) -> Tensor:
    """Which vertices have a target, bool [N]."""
    return (y >= 0).any(1) if y.dim() == 2 else y >= 0
