"""Link prediction: which pairs of vertices are edges, learned over the whole graph or from minibatches of edges."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.sample import LinkSource, MacrobatchLoader, PartitionBook, Store
from weft.sample.left_out import LeftOut
from weft.sample.moments import Moments
from weft.sample.negatives import NonEdges
from weft.sample.source import Pairs
from weft.sample.store import Column
from weft.training.decoders import Decoder, Dot
from weft.training.evaluate import from_scores, predict
from weft.training.held_out import Ends, GivenEdges, HeldOut, step_keys
from weft.training.pairs import FarRows, WholeGraphPairs
from weft.training.ranking import rank_value, ranks
from weft.training.settings import LinkConfig
from weft.training.steps import LinkSteps
from weft.training.timed import MomentRows

__all__ = ["Ends", "GivenEdges", "HeldOut", "LinkPrediction"]
TIMED_WIDTH = 64  # columns that rows of moments are taken to have when it is chosen how many are ranked at a time
RANKED_VALUES = 1 << 23  # numbers of the rows that are scored at a time, over all workers


class LinkPrediction:
    """Which pairs of vertices are edges: a decoder scores pairs by the rows that the model gives them."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        x: Rows,
        held_out: HeldOut,
        book: PartitionBook,
        config: LinkConfig,
        seed: int,
        decoder: Decoder | None = None,
        metric: str = "roc_auc",
        at: MomentRows | None = None,
    ) -> None:
        """`at`: what the model says of the ends of edges at the edges' times; None: of vertices that see all edges."""
        self._graph, self._model, self._x, self._held_out = graph, model, x, held_out
        self._book, self._config, self._seed = book, config, seed
        self._decoder, self._at = decoder or Dot(), at
        self.metric, self.ids = metric, graph.global_ids
        self.has_validation = config.val_edges is not None if held_out.given else config.val > 0
        self.left_out: LeftOut | None = None  # edges that minibatches do not see, from `source` on

    def source(self, batch: int | None) -> LinkSource:
        """The edges that training may see as seeds, about `batch` a step; None: all in one."""
        shard, comm, config, held_out = self._graph.shard, self._graph.comm, self._config, self._held_out
        learned, beside = held_out.learned(Ends.of(shard, self._book))
        pooled = config.draw == "batch"
        if config.exclude and self._at is not None:
            raise UserError(
                "link.exclude leaves out edges that minibatches learn, and where times are heeded no edge sees itself: "
                "leave it out"
            )
        ends = learned.turned(self._book, comm) if held_out.turned else learned
        source = ends.links(
            self._book, self._absent, batch or shard.num_global_edges + 1, config.negatives, self._seed,
            comm.sibling() if pooled else comm, held_out.kinds(ends), both_ways=config.exclude, pooled=pooled,
        )  # fmt: skip
        if config.exclude and beside.columns is not None:
            num_columns = shard.num_nodes + shard.num_halo
            pairs = (beside.tails.long() - self._book.own.start) * num_columns + beside.columns
            self.left_out = LeftOut(pairs, step_keys(beside), beside.weight, num_columns, source.steps, self._seed)
        return source

    @property
    def _absent(self) -> NonEdges | list[NonEdges]:
        return self._held_out.by_relation or self._held_out.absent

    def steps(self, loader: MacrobatchLoader, source: LinkSource) -> LinkSteps:
        """Epochs of a step for each minibatch; the loader's are those of the source."""
        return LinkSteps(self._graph, self._model, loader, source, self._loss)

    def full_graph(self) -> WholeGraphPairs:
        """Epochs of one step over the whole graph, with all edges that training sees."""
        source, comm = self.source(None), self._graph.comm

        def share(out: Tensor, epoch: int) -> Tensor:
            if self._config.draw == "batch":
                source.seeds(epoch, 0)
            drawn = source.draw(epoch, 0)
            count = comm.all_reduce(torch.tensor([drawn.heads.numel()]), "control", "pairs")
            heads = FarRows(drawn.heads, self._book, comm).take(out)
            tails = out[(drawn.tails.long() - self._book.own.start).to(out.device)]
            return self._loss(heads, tails, drawn, count[0].double())

        return WholeGraphPairs(self._graph, self._model, self._x, share)

    def _loss(self, heads: Tensor, tails: Tensor, drawn: Pairs, divisor: Tensor) -> Tensor:
        """Cross entropy of pairs, added up, over a divisor that is the same for all workers."""
        relations = None if drawn.relations is None else drawn.relations.to(heads.device)
        scores = self._decoder.scaled(self._scores(heads, tails, relations), heads.shape[1])
        exist = drawn.exist.to(scores.device, scores.dtype)
        total = functional.binary_cross_entropy_with_logits(scores, exist, reduction="sum")
        return total / divisor.to(scores.dtype)

    def _scores(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        """Of pairs whose tails are own vertices; where they are turned, these are what edges lead from."""
        ends = (tails, heads) if self._held_out.turned else (heads, tails)
        return self._decoder(*ends, relations)

    @torch.no_grad()
    def evaluate(self) -> tuple[dict[str, float], float | None]:
        rows: Tensor | None = None
        if self._at is None:
            rows = self.outputs().float().cpu()
        known = _Known(self._book, self._graph.comm, rows, self._at)
        value_of = self._area if self.metric == "roc_auc" else self._rank
        splits = ("val", self._held_out.val), ("test", self._held_out.test)
        values = {split: value_of(ends, known) for split, ends in splits}
        return {split: value for split, value in values.items() if not math.isnan(value)}, None

    def _area(self, ends: Ends, known: "_Known") -> float:
        """ROC AUC of edges, and one pair that is none beside each."""
        every, kinds = max(1, ends.count), self._held_out.kinds(ends)
        links = ends.links(self._book, self._absent, every, 1, self._seed, self._graph.comm, kinds)
        drawn = [links.draw(0, step) for step in range(links.steps)]
        heads, tails = torch.cat([one.heads for one in drawn]), torch.cat([one.tails for one in drawn])
        exist = torch.cat([one.exist for one in drawn])
        relations = [one.relations for one in drawn if one.relations is not None]
        times = [one.times for one in drawn if one.times is not None]
        far, own = known.ends(heads, tails, torch.cat(times) if times else None)
        scores = self._on_device(far, own, torch.cat(relations) if relations else None)
        return from_scores(scores.unsqueeze(1), exist.long(), self._graph)

    def _rank(self, ends: Ends, known: "_Known") -> float:
        """The mean over edges of what their ranks count, each among `eval_negatives` pairs that are none."""
        count, comm, kinds = self._config.eval_negatives, self._graph.comm, self._held_out.kinds(ends)
        batch = max(1, RANKED_VALUES // ((1 + count) * known.width))
        links = ends.links(self._book, self._absent, batch, count, self._seed, comm, kinds)
        sums = torch.zeros(2, dtype=torch.float64)
        for step in range(links.steps):
            ranked = links.ranked(step)
            heads, edges = torch.cat([ranked.heads, ranked.others.flatten()]), len(ranked.heads)
            times = ranked.times
            many_times = None if times is None else torch.cat([times, times.repeat_interleave(count)])
            fetched, own = known.ends(heads, ranked.tails, many_times, times)
            relations = ranked.relations
            scores = self._on_device(fetched[:edges], own, relations)
            many = None if relations is None else relations.repeat_interleave(count)
            others = self._on_device(fetched[edges:], own.repeat_interleave(count, 0), many).view(edges, count)
            sums[0] += rank_value(self.metric, ranks(scores, others)).sum()
            sums[1] += edges
        comm.all_reduce(sums, "control", "ranks")
        return float(sums[0] / sums[1]) if sums[1] else math.nan

    def _on_device(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        """Scores float32 on the host of rows there; a decoder's weights may lie elsewhere."""
        device = self._graph.comm.device
        some = None if relations is None else relations.to(device)
        return self._scores(heads.to(device), tails.to(device), some).float().cpu()

    def outputs(self) -> Tensor:
        return predict(self._model, self._graph, self._x)


class _Known:
    """Rows of the ends of pairs, whose tails are own vertices: kept of all vertices, or made of moments."""

    def __init__(self, book: PartitionBook, comm: Communicator, rows: Tensor | None, at: MomentRows | None) -> None:
        self._book, self._rows, self._at = book, rows, at
        self.width = TIMED_WIDTH if rows is None else max(1, rows.shape[1])
        self._store = None if rows is None else Store(comm, book, {"rows": Column(rows, "hidden_forward")})

    def ends(
        self, heads: Tensor, tails: Tensor, times: Tensor | None, tail_times: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of heads and of tails; `tail_times` where tails are fewer. All workers call it together."""
        if self._store is not None and self._rows is not None:
            far = self._store.fetch([heads]).batch(0).column("rows")
            return far, self._rows[tails.long() - self._book.own.start]
        assert self._at is not None and times is not None, "edges at their times have times"
        own = Moments(tails, times if tail_times is None else tail_times)
        far, near = (rows.float().cpu() for rows in self._at.of_each([Moments(heads, times), own]))
        return far, near
