"""What models say of vertices at times: of each moment alone, from the edges that it sees."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.layers import Stack
from weft.partitioning import Shard
from weft.sample import Fetcher, PartitionBook, SampleConfig, enter, fanouts_for, keep_rows
from weft.sample.moment_sampler import MomentSampler
from weft.sample.moments import Moments, Sees, join
from weft.sample.sampler import Drawing
from weft.training.hidden import inputs_of_last_layer
from weft.training.minibatches import needs_of
from weft.training.settings import TrainConfig

SEEDS = 512  # moments of each worker that are computed at a time


def sees_of(train: TrainConfig, shard: Shard) -> Sees:
    """What seeds see of the graph's edges: a vertex those until its own time, an edge's ends only those before it, so
    that no edge that is learned sees itself, its reverse, or what happens with it."""
    if shard.local.time is None or train.times == "ignore":
        return "all"
    return "until" if train.task == "vertices" else "before"


def refuse_full_graph(shard: Shard) -> UserError:
    return UserError(
        f"the edges of {shard.graph_name} have times, and plan full would let all vertices see later edges: use "
        "--strategy minibatch, batchgnn or gsplit, which draw none of these, or --set train.times=ignore"
    )


def own_times(shard: Shard) -> Tensor:
    """The times of own vertices, float64 [N], NaN: unknown."""
    if shard.time is None:
        raise UserError(
            f"the edges of {shard.graph_name} have times and its vertices have none, so that nobody knows which edges "
            "each may see: give vertices times (--vertex-time-column), or --set train.times=ignore"
        )
    return shard.time


def check_known(times: Tensor, rows: Tensor, shard: Shard) -> None:
    """Refuses vertices (bool [N]) that a run is about and whose time is not known."""
    lacking = (times.isnan() & rows.to(times.device)).nonzero().squeeze(1)
    if lacking.numel():
        raise UserError(
            f"vertex {int(shard.global_ids[lacking[0]])} of {shard.graph_name} is in a split and has no time: give it "
            "one, or take it out of the split"
        )


class MomentRows:
    """Rows that a model gives of moments, computed as exactly as settings say: from all that each sees, unless
    `sample.eval_fanout` or sample.method=last says otherwise. Every worker takes part in every call."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        x: Rows,
        book: PartitionBook,
        config: SampleConfig,
        sees: Sees,
        seed: int,
    ) -> None:
        if not isinstance(model, Stack):
            raise UserError(
                "vertices at times have a level for each layer, so the model must be a weft.layers.Stack of layers: "
                "return one, or --set train.times=ignore"
            )
        self._graph, self._model, self._x, self._book, self._needs = graph, model, x, book, needs_of(model)
        fanouts, method = config.eval_fanout or (-1,) * self._needs.layers, config.method
        if config.eval_fanout is None:
            method = "last" if config.method == "last" else "neighbour"
            fanouts = fanouts_for(config, self._needs.layers) if method == "last" else fanouts
        drawing = Drawing(fanouts, method, seed, self._needs.loops, sees=sees, scales=self._needs.degrees)
        self._sampler = MomentSampler(_NoSeeds(), graph.shard, book, graph.comm, drawing)

    def of_own(self, times: Tensor, which: Tensor | None = None) -> Tensor:
        """Of own vertices, [N, C]: all, where those without a time see all edges; or some (bool [N]), others zeros."""
        rows = torch.arange(len(self._book.own)) if which is None else which.nonzero().squeeze(1)
        found = self.of(Moments((rows + self._book.own.start).int(), _or_now(times[rows])))
        out = found.new_zeros(len(self._book.own), found.shape[1])
        out[rows] = found
        return out

    def of_each(self, wanted: list[Moments]) -> list[Tensor]:
        """Of moments of vertices of any worker, several of which may be the same."""
        distinct = join(wanted).distinct()
        rows = self.of(distinct)
        return [rows[distinct.find(some)] for some in wanted]

    def embeddings(self, times: Tensor) -> Tensor:
        """The rows of own vertices that enter the last layer."""
        positions = (torch.arange(len(self._book.own)) + self._book.own.start).int()
        with inputs_of_last_layer(self._model) as entered:
            return self.of(Moments(positions, _or_now(times)), lambda out: entered.pop()[: len(out)])

    @torch.no_grad()
    def of(self, moments: Moments, take: Callable[[Tensor], Tensor] = lambda out: out) -> Tensor:
        """Of moments that all differ, [M, C]. `take`: what of a pass is wanted in the place of its outputs."""
        comm, count = self._graph.comm, moments.nodes.numel()
        most = comm.all_reduce(torch.tensor([count]), "control", "moments to look at", op="max")
        order = torch.argsort(moments.times, stable=True)  # those of one time share what they see
        was_training = self._model.training
        self._model.eval()
        found = []
        try:
            for first in range(0, max(1, int(most)), SEEDS):
                chosen = order[first : first + SEEDS]
                found.append(take(self._pass(Moments(moments.nodes[chosen], moments.times[chosen]))))
        finally:
            self._model.train(was_training)
        rows = torch.cat(found)
        out = torch.empty_like(rows)
        out[order] = rows
        return out.float() if out.dtype == torch.bfloat16 else out

    def _pass(self, seeds: Moments) -> Tensor:
        graph, x = self._graph, self._x.detach()
        kept = keep_rows("float32", x)
        fetcher = Fetcher(self._sampler, graph.shard, self._book, graph.comm, x, self._needs, kept)
        (batch,) = self._sampler.draw_around_moments([seeds], 0, [0])  # keyed by moments alone, however they are dealt
        inputs = fetcher.inputs(batch, fetcher.store.fetch([batch.nodes]).batch(0))
        enter(graph, batch, inputs)
        with graph.exact_pass(sampled=True) as view:
            out: Tensor = torch.cat([self._model(view, inputs.x)])  # complete: rows that still travel are waited for
        return out[: seeds.nodes.numel()]


def _or_now(times: Tensor) -> Tensor:
    """The end of time where a time is not known."""
    return torch.where(times.isnan(), torch.inf, times)


class _NoSeeds:
    """A source of nothing: what is drawn around is given."""

    steps = 0

    def seeds(self, epoch: int, step: int) -> Tensor:
        raise AssertionError("there are no seeds")

    def moments(self, epoch: int, step: int) -> Moments:
        raise AssertionError("there are no seeds")
