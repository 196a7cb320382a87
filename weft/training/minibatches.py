"""From a run's settings to its minibatches: what the model needs, how many are fetched together, what is cached."""

from dataclasses import dataclass

from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.aggregate.topology import Reduce, Weight
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.layers import BatchNorm, Stack, learns_columns, traits_of
from weft.sample import (
    CachedAggregate,
    Features,
    Fetcher,
    MacrobatchLoader,
    Needs,
    PartitionBook,
    Plan,
    SampleConfig,
    Sampler,
    SharedSampler,
    Sharing,
    Source,
    Trial,
    drawing_for,
    keep_rows,
)
from weft.sample.left_out import LeftOut
from weft.sample.moment_sampler import MomentSampler
from weft.sample.moment_split import SharedMomentSampler
from weft.sample.moments import Sees
from weft.sample.trial import Growth, caching_pays, choose_macrobatch_size


def make_loader(
    graph: DistributedGraph,
    model: nn.Module,
    x: Rows,
    source: Source,
    book: PartitionBook,
    config: SampleConfig,
    plan: Plan,
    seed: int,
    last_epoch: int,
    left_out: LeftOut | None = None,
    sees: Sees = "all",
) -> MacrobatchLoader:
    """The minibatches that a run trains its model on. Every worker decides alike.

    `left_out`: edges that minibatches do not see; `sees`: what seeds see of edges that have times.
    """
    if not isinstance(model, Stack):
        raise UserError(
            "minibatches have a level for each layer, so the model must be a weft.layers.Stack of layers: return one, "
            "or train over the full graph (--strategy full)"
        )
    if learns_columns(model) and config.features != "float32":
        raise UserError(
            f"sample.features={config.features} rounds the numbers of learned columns: leave it out, or ingest without "
            "--learned-columns"
        )
    cached = cacheable(model, config, x, left_out is not None, sees != "all")
    return open_loader(
        graph, x, source, book, needs_of(model), cached, config, plan, seed, last_epoch, left_out, sees,
    )  # fmt: skip


def open_loader(
    graph: DistributedGraph,
    x: Rows,
    source: Source,
    book: PartitionBook,
    needs: Needs,
    cacheable: "Cacheable | None",
    config: SampleConfig,
    plan: Plan,
    seed: int,
    last_epoch: int | None,
    left_out: LeftOut | None = None,
    sees: Sees = "all",
) -> MacrobatchLoader:
    """source -> sampler -> fetcher -> loader. `cacheable`: the aggregate of the input that may be cached."""
    _check(graph, needs.layers, config, plan, x, sees)
    overlap = config.overlap and graph.comm.num_workers > 1
    comm = graph.comm.sibling() if overlap else graph.comm
    sampler = _sampler(source, graph, book, comm, needs, config, seed, plan, x.requires_grad, left_out, sees)
    trial = Trial(sampler, book, comm)
    growth = trial.growth()
    cached = None
    if cacheable is not None and (cacheable.always or caching_pays(*trial.sizes(), cacheable.reads_own)):
        assert isinstance(x, Tensor), "what is cached are aggregates of rows of one width"
        rows, kept = graph.aggregate_once(x, *cacheable.name), Features(config.features, x.shape[1], x.dtype)
        cached = CachedAggregate((*cacheable.name, None), rows, kept, cacheable.reads_own)
    fetcher = Fetcher(sampler, graph.shard, book, comm, x, needs, keep_rows(config.features, x), cached)
    fetcher.keep_hot(trial, config.hot_mib)
    size = 1
    if plan != "independent" and config.macrobatch == "auto":
        wanted = growth if cached is None else Growth(growth.batches, growth.shorter, growth.shorter)
        size = choose_macrobatch_size(wanted, fetcher.store.row_bytes(), config.memory_mib << 20)
    elif plan != "independent" and config.macrobatch != "auto":
        size = min(config.macrobatch, source.steps)
    return MacrobatchLoader(fetcher, size, last_epoch, overlap)


def _sampler(
    source: Source,
    graph: DistributedGraph,
    book: PartitionBook,
    comm: Communicator,
    needs: Needs,
    config: SampleConfig,
    seed: int,
    plan: Plan,
    learned: bool,
    left_out: LeftOut | None,
    sees: Sees,
) -> Sampler:
    """Of this worker's own minibatches, or of those that all workers share; `learned`: input rows train."""
    drawing = drawing_for(config, needs, seed, sees)
    whose = source, graph.shard, book, comm, drawing
    if plan != "split" or comm.num_workers == 1:
        if left_out is not None and config.method == "weighted":
            left_out = left_out.with_weight()
        return MomentSampler(*whose) if sees != "all" else Sampler(*whose, left_out=left_out)
    sharing = Sharing(config.alone_hops, exchanged=needs.layers - (not learned), scales=needs.degrees)
    return (SharedMomentSampler if sees != "all" else SharedSampler)(*whose, sharing)


def _check(graph: DistributedGraph, layers: int, config: SampleConfig, plan: Plan, x: Rows, sees: Sees) -> None:
    if sees == "all" and config.method == "last":
        raise UserError(
            f"sample.method=last draws a vertex's newest edges, and this run knows no times of "
            f"{graph.shard.graph_name}: give edges their times (--time-column), or use sample.method=neighbour"
        )
    if sees != "all" and config.alone_hops:
        raise UserError("sample.alone_hops is for edges without times: leave it out, or set train.times=ignore")
    if x.requires_grad and graph.comm.num_workers > 1 and plan != "split":
        raise UserError(
            f"{_featureless(graph)} no features, and learned rows change with every step, so that they cannot "
            "be fetched ahead: use --strategy gsplit, which exchanges them in its steps, or --strategy full"
        )
    if config.alone_hops >= layers:
        raise UserError(
            f"sample.alone_hops is {config.alone_hops}, but the model has {layers} layers: workers share one hop at "
            "least"
        )
    if config.method == "weighted" and graph.shard.local.weight is None:
        raise UserError(f"sample.method=weighted draws by edge weight, but {graph.shard.graph_name} has no weights")


def _featureless(graph: DistributedGraph) -> str:
    """Who has no features, as people say it."""
    types, name = graph.shard.types, graph.shard.graph_name
    if types is None:
        return f"{name} has"
    without = [f"'{kind.name}'" for kind in types.vertices if kind.count and not kind.num_features]
    return f"vertices of type {', '.join(without)} in {name} have"


def needs_of(model: Stack) -> Needs:
    """What the layers of a model want to know of sampled vertices; of a user's own anything may be wanted."""
    traits = [traits_of(layer) for layer in model.layers]
    own = not all(layer.any_level for layer in traits)
    config = model.config
    return Needs(
        layers=len(model.layers),
        loops=any(layer.adds_loops for layer in traits),
        degrees=own or any(layer.wants_degrees for layer in traits),
        ids=own or model.encoder is not None or config.input_dropout > 0 or config.attention_dropout > 0,
        counted=_counted_hops(model, own),
    )


def _counted_hops(model: Stack, own: bool) -> int:
    """Hops from the seeds within which batch normalisation may be: of input rows only in layers of a user's own."""
    if not any(isinstance(module, BatchNorm) for module in model.modules()):
        return 0
    return len(model.layers) if own else len(model.layers) - 1


@dataclass(frozen=True)
class Cacheable:
    """The aggregate that a model's first layer takes of its constant input, if it can be computed once."""

    name: tuple[Reduce, Weight]
    reads_own: bool  # the layer wants the input rows too
    always: bool  # it is cached without counting whether that saves rows


def cacheable(
    model: Stack, config: SampleConfig, x: Rows, edges_left_out: bool = False, timed: bool = False
) -> Cacheable | None:
    """What of the model's input may be cached: what is exact, and not refused by the settings."""
    if config.cache_aggregates == "never":
        return None
    first, why_not = traits_of(model.layers[0]), ""
    name = first.input_aggregate
    if name is None:
        why_not = "the first layer computes something of its own from its neighbours' rows"
    elif model.config.input_dropout > 0:
        why_not = "model.input_dropout changes the input in every step"
    elif model.columns is not None:
        why_not = "rows of learned columns change in every step"
    elif model.encoder is not None:
        why_not = "it reads what the encoder makes of the features, which changes in every step"
    elif x.requires_grad:
        why_not = "learned rows change in every step"
    elif edges_left_out:
        why_not = "link.exclude leaves other edges out in every step"
    elif timed:
        why_not = "every seed sees the edges of its own time"
    always = config.cache_aggregates == "always"
    if why_not and always:
        raise UserError(f"aggregates of the input cannot be kept, since {why_not}: set sample.cache_aggregates=never")
    if why_not or name is None:
        return None
    return Cacheable(name, first.reads_input or model.config.residual, always)
