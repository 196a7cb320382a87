"""The labels of edges, classes or numbers: a network on the rows of both ends, and on what an edge itself carries."""

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.graph.splits import known
from weft.graph.typedrows import Rows
from weft.sample import MacrobatchLoader, Minibatch, PartitionBook, Store, VertexSource
from weft.sample.moments import Moments, join
from weft.sample.store import Column
from weft.training.decoders import PairMLP
from weft.training.evaluate import predict
from weft.training.labelled import LabelledEdges
from weft.training.numbers import TargetScale
from weft.training.pairs import FarRows, WholeGraphPairs
from weft.training.settings import TrainConfig
from weft.training.steps import MinibatchSteps
from weft.training.targets import RowLoss, make_targets
from weft.training.timed import MomentRows

SCORED_VALUES = 1 << 23  # numbers of the rows that are scored at a time
SCORED_MOMENTS = 1 << 14  # edges whose ends at their times are computed at a time


class EdgeSource:
    """Labelled edges as seeds: a step has `batch` of those of all workers, each on the worker that owns its tail."""

    def __init__(self, rows: VertexSource, heads: Tensor, tails: Tensor, times: Tensor | None = None) -> None:
        """`rows` deals out edges, by their numbers among this worker's; both ends are positions, int32.

        `times`: of edges, float64, where minibatches have moments.
        """
        self.steps, self._rows, self._heads, self._tails, self._times = rows.steps, rows, heads, tails, times

    def rows(self, epoch: int, step: int) -> Tensor:
        """Which of this worker's edges a minibatch has, int64."""
        return self._rows.epoch(epoch)[step]

    def ends(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Heads and tails of some of this worker's edges, positions."""
        return self._heads[rows], self._tails[rows]

    def times(self, rows: Tensor) -> Tensor | None:
        return None if self._times is None else self._times[rows]

    def moments(self, epoch: int, step: int) -> Moments:
        rows = self.rows(epoch, step)
        times = self.times(rows)
        assert times is not None, "these edges have no times"
        return join([Moments(ends, times) for ends in self.ends(rows)]).distinct()

    def seeds(self, epoch: int, step: int) -> Tensor:
        both: Tensor = torch.unique(torch.cat(self.ends(self.rows(epoch, step))))
        return both


class EdgeLabels:
    """The labels of edges that a file names. Each edge belongs to the worker that owns its tail."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        x: Rows,
        labelled: LabelledEdges,
        book: PartitionBook,
        config: TrainConfig,
        training: bool = True,
        at: MomentRows | None = None,
    ) -> None:
        """The model has a PairMLP as its `decoder`. Without `training` it can be evaluated alone.

        `at`: what the model says of the ends of edges at the edges' times; None: of vertices that see all edges.
        """
        self._graph, self._model, self._x, self._book = graph, model, x, book
        heads, tails = book.positions(labelled.heads), book.positions(labelled.tails)
        own = (tails >= book.own.start) & (tails < book.own.stop)
        self.ids = own.nonzero().squeeze(1)  # of own edges, their numbers in the file
        self._heads, self._tails, self._at = heads[own], tails[own], at
        self._times = None if at is None or labelled.times is None else labelled.times[own]
        device = graph.comm.device
        self._masks = {split: mask[own].to(device) for split, mask in labelled.masks.items()}
        y = labelled.y[own].to(device)
        self._targets = make_targets(y, labelled.num_classes, config, graph, model)
        self.metric, self.has_validation = self._targets.metric, bool(labelled.masks["val"].any())
        self._features = None if labelled.features is None else labelled.features[own].to(device)
        if self._features is not None:
            model.feature_scale = TargetScale(self._features.shape[1]).to(device)
        self._val_loss: RowLoss | None = None
        if training:
            self._make_losses(y, config)

    def _make_losses(self, y: Tensor, config: TrainConfig) -> None:
        self._rows = (self._masks["train"] & known(y)).nonzero().squeeze(1)
        self._targets.fit(self._rows)
        if self._features is not None:
            self._scale.fit(self._features[self._masks["train"]], self._graph.comm)
        self._loss_of = self._targets.loss(self._rows)
        if self._loss_of.count == 0:
            raise UserError("edge.labels has no training edge with a known label: give it a train split")
        if config.select == "loss" and self.has_validation:
            val_rows = (self._masks["val"] & known(y)).nonzero().squeeze(1)
            self._val_loss = self._targets.loss(val_rows, weighted=False)

    @property
    def _scale(self) -> TargetScale:
        scale = self._model.feature_scale
        assert isinstance(scale, TargetScale)
        return scale

    def source(self, batch: int, seed: int) -> EdgeSource:
        """The training edges as seeds, `batch` a step."""
        rows = VertexSource(self._rows.cpu(), self.ids, batch, seed, self._graph.comm, 0)
        return EdgeSource(rows, self._heads, self._tails, self._times)

    def steps(self, loader: MacrobatchLoader, source: EdgeSource) -> "EdgeSteps":
        """Epochs of a step for each minibatch; the loader's are those of the source."""
        return EdgeSteps(self._graph, self._model, loader, source, self)

    def full_graph(self) -> WholeGraphPairs:
        """Epochs of one step over the whole graph, with all training edges."""
        rows = self._rows.cpu()
        far = FarRows(self._heads[rows], self._book, self._graph.comm)
        tails = (self._tails[rows].long() - self._book.own.start).to(self._graph.comm.device)

        def share(out: Tensor, epoch: int) -> Tensor:
            return self.share(far.take(out), out[tails], self._rows, self._loss_of.divisor)

        return WholeGraphPairs(self._graph, self._model, self._x, share)

    def weigh(self, edges: Tensor) -> Tensor:
        """What training edges count in a divisor, float64."""
        return self._loss_of.weigh(self._targets.learned[edges])

    def share(self, heads: Tensor, tails: Tensor, edges: Tensor, divisor: Tensor) -> Tensor:
        """The loss of training edges, from the rows of their ends, over a divisor that is the same for all workers."""
        return self._loss_of.share(self._scores(heads, tails, edges), self._targets.learned[edges], divisor)

    def _scores(self, heads: Tensor, tails: Tensor, edges: Tensor) -> Tensor:
        """The model's outputs for some of this worker's edges."""
        decoder = self._model.decoder
        assert isinstance(decoder, PairMLP)
        features = None if self._features is None else self._scale.reduced(self._features[edges])
        return decoder.rows(heads, tails, features)

    @torch.no_grad()
    def _outputs(self) -> Tensor:
        """Of all of this worker's edges, exact, [P, C]."""
        device = self._graph.comm.device
        if self._at is not None:
            return self._outputs_at(self._at)
        rows = predict(self._model, self._graph, self._x).cpu()
        store = Store(self._graph.comm, self._book, {"rows": Column(rows, "hidden_forward")})
        heads = store.fetch([self._heads]).batch(0)
        far, tails = heads.column("rows"), self._tails.long() - self._book.own.start
        step = max(1, SCORED_VALUES // max(1, rows.shape[1]))
        found = []
        for edges in torch.split(torch.arange(len(tails)), step):
            found.append(self._scores(far[edges].to(device), rows[tails[edges]].to(device), edges.to(device)))
        return torch.cat(found)

    def _outputs_at(self, at: MomentRows) -> Tensor:
        """The same, each edge's ends as they were before it; so many at a time as all workers have."""
        assert self._times is not None
        longest = self._graph.comm.all_reduce(torch.tensor([len(self._tails)]), "control", "labelled edges", op="max")
        found = []
        for first in range(0, max(1, int(longest)), SCORED_MOMENTS):
            edges = torch.arange(len(self._tails))[first : first + SCORED_MOMENTS]
            ends = [Moments(nodes[edges], self._times[edges]) for nodes in (self._heads, self._tails)]
            heads, tails = at.of_each(ends)
            found.append(self._scores(heads, tails, edges))
        return torch.cat(found)

    def evaluate(self) -> tuple[dict[str, float], float | None]:
        out = self._outputs()
        values = self._targets.score(out, self._masks)
        if self._val_loss is None:
            return values, None
        loss = self._val_loss(out).double().view(1)
        return values, float(self._graph.comm.all_reduce(loss, "control", "validation loss"))

    def outputs(self) -> Tensor:
        return self._targets.predictions(self._outputs())


class EdgeSteps(MinibatchSteps):
    """Minibatches of edges whose labels are learned."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        loader: MacrobatchLoader,
        source: EdgeSource,
        labels: EdgeLabels,
    ) -> None:
        super().__init__(graph, model, loader)
        self._source, self._labels = source, labels

    def sizes(self, epoch: int) -> Tensor:
        steps = range(self._source.steps)
        return torch.stack([self._labels.weigh(self._source.rows(epoch, step)) for step in steps])

    def share(self, out: Tensor, minibatch: Minibatch, divisor: Tensor) -> Tensor:
        rows = self._source.rows(minibatch.epoch, minibatch.step)
        times = self._source.times(rows)
        heads, tails = (out[minibatch.batch.places(end, times)] for end in self._source.ends(rows))
        return self._labels.share(heads, tails, rows, divisor)
