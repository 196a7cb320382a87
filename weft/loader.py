"""Minibatches for a training loop of your own: `for batch in weft.Loader(graph, model, batch=1024)`."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph, GraphView
from weft.comm import Communicator
from weft.config import make_config
from weft.errors import UserError
from weft.graph import Graph
from weft.graph.splits import known
from weft.layers import Stack
from weft.own_loop import joined, own_shard
from weft.partitioning import Shard
from weft.sample import Batch, Inputs, MacrobatchLoader, Needs, PartitionBook, Plan, VertexSource, enter
from weft.training.evaluate import pick_masks
from weft.training.minibatches import cacheable, needs_of, open_loader
from weft.training.timed import check_known, own_times

SeedNames = Literal["train", "val", "test", "all"]


class Loader:
    """Minibatches of a graph, sampled and fetched ahead. Each iteration over it is the next epoch.

    >>> graph = weft.load("synthetic:tiny")
    >>> model = weft.layers.Stack([weft.layers.SAGE(16, 32), weft.layers.SAGE(32, 4)])
    >>> with weft.Loader(graph, model, batch=64, fanout=[15, 10], seed=0, epochs=2) as loader:
    ...     for epoch in range(2):
    ...         for batch in loader:
    ...             out = model(batch.graph, batch.x)  # [seeds, 4]; by layer: batch.graph.level(depth)
    ...             total = torch.nn.functional.cross_entropy(out, batch.y, reduction="sum")
    ...             loss = total / batch.total_seeds

    A PyG model takes `data = batch.to_pyg()`, and `model(data.x, data.edge_index)[: data.batch_size]`. For such a
    model, or any other that is not a stack of layers, give the number of its layers instead.

    With several workers each makes its loader, all make the same calls, and gradients are summed by
    `weft.all_reduce_gradients`; every worker has as many batches, of some of which it may have no seeds. A minibatch is
    one of all workers together, and does not depend on how many there are.
    """

    def __init__(
        self,
        graph: DistributedGraph | Graph | Shard | Path | str,
        model: nn.Module | Sequence[nn.Module] | int,
        *,
        batch: int = 1024,
        fanout: Sequence[int] | None = None,
        method: str = "neighbour",
        plan: Plan = "macrobatch",
        seed: int = 0,
        epochs: int | None = None,
        seeds: SeedNames | Tensor = "train",
        split: int = 0,
        x: Tensor | None = None,
        times: Tensor | Literal["heed", "ignore"] = "heed",
        dtype: torch.dtype = torch.float32,
        comm: Communicator | None = None,
        **settings: Any,
    ) -> None:
        """A loader for one worker.

        graph: what weft.open_part gave; or a Graph, a data set's name or a graph folder (one worker); or a partition
        folder or a Shard (any number of workers), with the communicator that weft.init_workers gave as `comm`.
        model: a weft.layers.Stack, layers in order, or the number of layers (hops).
        batch: seeds of a step, over all workers together; fanout: in-neighbours drawn at each hop, first those of the
        seeds, -1: all (15, 10, 5, 5...); method: neighbour, weighted, labor or last.
        plan: independent (one by one), macrobatch (several fetched at a time) or split (workers share each minibatch).
        epochs: how many there will be, so that the next one's first rows are fetched ahead; None: it is not known.
        seeds: a split's vertices that have a label, all vertices, or global ids, int64; split: where there are several.
        times: where edges have times, those at which this worker's vertices are looked at, float64 [N], later edges not
        being drawn; heed: the vertices' own; ignore: all edges are drawn from.
        x: this worker's input rows instead of the graph's features; dtype: of the features otherwise.
        settings: more of `weft settings` sample.*, such as macrobatch, features, hot_mib, memory_mib, overlap.
        """
        if isinstance(graph, DistributedGraph):
            shard, comm = graph.shard, graph.comm
        else:
            comm = comm or joined()
            shard = own_shard(graph, comm)
        needs, stack = _needs(model)
        chosen: dict[str, Any] = {"batch": batch, "method": method, "cache_aggregates": "never", **settings}
        if fanout is not None:
            chosen["fanout"] = tuple(fanout)
        run = make_config(
            {"sample": chosen, "exchange": {"plan": plan}, "model": {"layers": needs.layers}, "seed": seed}
        )
        if run.exchange.plan == "full":
            raise UserError("plan full has no minibatches: use independent, macrobatch or split")
        self.epochs, self.comm, self._plan = epochs, comm, run.exchange.plan
        self._epoch = 0
        self._graph = DistributedGraph(shard, comm)
        self._graph.noise.seed = seed
        self._needs = needs
        rows = _seed_rows(shard, seeds, split)
        book = PartitionBook(shard, comm)
        seed_times = _times_of(shard, rows, times)
        timed = seed_times is not None
        self._source = VertexSource(rows, shard.global_ids, batch, seed, comm, book.own.start, seed_times)
        if not self._source.count:
            raise UserError(
                f"{shard.graph_name} has none of these seeds to make minibatches of: give others (seeds=...)"
            )
        input_rows = _input_rows(shard, x, dtype)
        cached = None if stack is None else cacheable(stack, run.sample, input_rows, timed=timed)
        self._loader: MacrobatchLoader = open_loader(
            self._graph, input_rows, self._source, book, needs, cached, run.sample, run.exchange.plan, seed, epochs,
            sees="until" if timed else "all",
        )  # fmt: skip
        self._running: Generator[LoadedBatch, None, None] | None = None  # the epoch under way
        self._current: LoadedBatch | None = None  # what it gave last

    def __len__(self) -> int:
        """Minibatches of an epoch, the same for every worker."""
        return self._loader.steps

    def __iter__(self) -> Iterator["LoadedBatch"]:
        """The next epoch."""
        self._epoch += 1
        return self.epoch(self._epoch)

    def epoch(self, epoch: int) -> Iterator["LoadedBatch"]:
        """A certain epoch, from 1 on, instead of any that is under way; iterating goes on with the one after it."""
        if epoch < 1 or (self.epochs is not None and epoch > self.epochs):
            raise UserError(f"epoch {epoch} was asked for: this loader has epochs 1 to {self.epochs or '...'}")
        if self._running is not None:
            self._running.close()
        self._epoch, self._running = epoch, self._batches(epoch)
        return self._running

    def _batches(self, epoch: int) -> Generator["LoadedBatch", None, None]:
        for minibatch in self._loader.epoch(epoch):
            inputs = minibatch.inputs()
            enter(self._graph, minibatch.batch, inputs)
            with self._graph.training_pass(epoch, minibatch.step + 1) as view:
                self._current = LoadedBatch(self, epoch, minibatch.batch, inputs, view)
                try:
                    yield self._current
                finally:
                    self._current = None

    def close(self) -> None:
        """Ends its thread and waits for what is being fetched. Every worker closes its own."""
        if self._running is not None:
            self._running.close()
        self._loader.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoadedBatch:
    """A minibatch on this worker: what a loader gives, valid until it gives the next."""

    def __init__(self, loader: Loader, epoch: int, batch: Batch, inputs: Inputs, view: GraphView) -> None:
        source, graph = loader._source, loader._graph
        rows = source.epoch(epoch)[batch.step]
        self.epoch, self.step = epoch, batch.step  # from 1 on; of the epoch, from 0 on
        self.x = inputs.x  # [N, F], input rows of the vertices that it has here
        self.seeds = graph.shard.global_ids[rows]  # int64, global ids
        self.y = None if graph.shard.y is None else graph.shard.y[rows]  # targets of the seeds
        # Seeds of all workers together: what a sum over seeds is divided by to be a mean.
        self.total_seeds = min(source.batch, source.count - batch.step * source.batch)
        self._loader, self._batch, self._inputs, self._view = loader, batch, inputs, view

    @property
    def graph(self) -> GraphView:
        """What layers are written against: for a weft.layers.Stack itself, for one layer `graph.level(depth)`."""
        if self._loader._current is not self:
            raise UserError("this minibatch has passed: take its graph, and compute, before the loader gives the next")
        return self._view

    def to_pyg(self) -> Any:
        """The sampled graph as torch_geometric's Data, or where PyG is not installed as a SampledGraph.

        Its first `batch_size` vertices are the seeds, and `y` are their targets. Every other vertex was drawn around
        once, where it was first reached, as by PyG's NeighborLoader; aggregations are over the edges that were drawn.
        Where a vertex is first reached depends on the seeds that lie on this worker: with another number of workers
        seeds are the same, but around some vertices other edges are drawn, unless all are taken (fanout -1).
        """
        found = self._sampled_graph()
        try:
            from torch_geometric.data import Data
        except ImportError:
            return found
        return Data(**{name: value for name, value in vars(found).items() if value is not None})

    def _sampled_graph(self) -> "SampledGraph":
        batch, inputs, loader = self._batch, self._inputs, self._loader
        if loader._plan == "split" and loader.comm.num_workers > 1:
            raise UserError("under plan split no worker has a whole minibatch: use plan independent or macrobatch")
        if loader._needs.loops:
            raise UserError("this loader leaves out self-loops, for the model it was given: give it a number of layers")
        if inputs.aggregates is not None:
            raise UserError("cached aggregates stand for the last hop, which has no edges: set cache_aggregates=never")
        assert isinstance(inputs.x, Tensor), "this loader's rows are of one width"
        first, edges, carried = 0, [], []
        for hop in batch.hops:
            low, high = int(hop.csr.indptr[first]), int(hop.csr.indptr[-1])
            degrees = hop.csr.indptr[first:].diff()
            targets = torch.arange(first, hop.csr.num_rows).repeat_interleave(degrees)
            edges.append(torch.stack([hop.csr.indices[low:high].long(), targets]))
            carried.append({name: data[low:high] for name, data in hop.csr.edge_data.items()})
            first = hop.csr.num_rows
        data = {name: torch.cat([some[name] for some in carried]) for name in carried[0]}
        relation = data.get("relation")
        return SampledGraph(
            x=inputs.x,
            edge_index=torch.cat(edges, 1),
            y=self.y,
            batch_size=self.seeds.numel(),
            n_id=inputs.ids,
            num_sampled_nodes=[batch.sizes[0], *torch.tensor(batch.sizes).diff().tolist()],
            num_sampled_edges=[some.shape[1] for some in edges],
            edge_weight=data.get("weight"),
            edge_type=None if relation is None else relation.long(),
            edge_attr=data.get("features"),
        )


@dataclass(frozen=True, eq=False)
class SampledGraph:
    """A minibatch as one graph, under PyG's names."""

    x: Tensor  # [N, F]
    edge_index: Tensor  # int64 [2, E], from source to target
    y: Tensor | None  # of the seeds
    batch_size: int  # how many of the first vertices are seeds
    n_id: Tensor  # int64 [N], global ids
    num_sampled_nodes: list[int]  # by hop, the seeds first
    num_sampled_edges: list[int]
    edge_weight: Tensor | None = None
    edge_type: Tensor | None = None
    edge_attr: Tensor | None = None


def _needs(model: nn.Module | Sequence[nn.Module] | int) -> tuple[Needs, Stack | None]:
    """What must be known of sampled vertices, ids always; and the model as a stack, if it is one."""
    if isinstance(model, int):
        if model < 1:
            raise UserError(f"{model} layers were given: minibatches are for models of 1 layer or more")
        return Needs(model, loops=False, degrees=True, ids=True), None
    if isinstance(model, nn.Module) and not isinstance(model, Stack):
        raise UserError(
            f"{type(model).__name__} does not say how many hops it reads: give a weft.layers.Stack, a list of layers, "
            "or the number of its layers"
        )
    stack = model if isinstance(model, Stack) else Stack(list(model))
    return replace(needs_of(stack), ids=True), stack


def _input_rows(shard: Shard, x: Tensor | None, dtype: torch.dtype) -> Tensor:
    if x is None and shard.types is not None:
        raise UserError(
            f"{shard.graph_name} has types of vertices, each with features of its own: give x, rows of one width"
        )
    if x is None and shard.x is None:
        raise UserError(f"{shard.graph_name} has no features: give x, a row for each of this worker's vertices")
    if x is None:
        assert shard.x is not None
        return shard.x.to(dtype)
    if x.dim() != 2 or len(x) != shard.num_nodes:
        raise UserError(
            f"x has shape {tuple(x.shape)}, and this worker has {shard.num_nodes} vertices: give a row each"
        )
    return x


def _times_of(shard: Shard, seeds: Tensor, times: Tensor | Literal["heed", "ignore"]) -> Tensor | None:
    """The times of own vertices, float64 [N]; None: edges have none, or theirs do not matter."""
    if isinstance(times, str) and (times == "ignore" or shard.local.time is None):
        return None
    if shard.local.time is None:
        raise UserError(f"times of seeds were given, and the edges of {shard.graph_name} have none: leave times out")
    found = own_times(shard) if isinstance(times, str) else times.double()
    if found.shape != (shard.num_nodes,):
        raise UserError(f"times have shape {list(found.shape)}, and this worker has {shard.num_nodes} vertices")
    chosen = torch.zeros(shard.num_nodes, dtype=torch.bool)
    chosen[seeds] = True
    check_known(found, chosen, shard)
    return found


def _seed_rows(shard: Shard, seeds: SeedNames | Tensor, split: int) -> Tensor:
    """Own rows that are seeds, int64."""
    if isinstance(seeds, Tensor):
        if seeds.dtype != torch.int64 or seeds.dim() != 1:
            raise UserError(f"seeds are global ids, a vector of int64, not {seeds.dtype} of shape {tuple(seeds.shape)}")
        if seeds.numel() and (int(seeds.min()) < 0 or int(seeds.max()) >= shard.num_global_nodes):
            raise UserError(f"seeds go from {int(seeds.min())} to {int(seeds.max())}, and vertices from 0 to "
                            f"{shard.num_global_nodes - 1}")  # fmt: skip
        return torch.isin(shard.global_ids, seeds).nonzero().squeeze(1)
    if seeds == "all":
        return torch.arange(shard.num_nodes)
    masks = pick_masks(shard, split)
    if seeds not in masks:
        raise UserError(f"{shard.graph_name} has no {seeds} vertices: it has {', '.join(masks) or 'no splits'}")
    mask = masks[seeds] if shard.y is None else masks[seeds] & known(shard.y)
    return mask.nonzero().squeeze(1)
