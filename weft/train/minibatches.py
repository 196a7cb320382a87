"""From a run's settings to its minibatches: what the model needs, how many are planned together, what is cached."""

from collections.abc import Callable

from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.comm import Communicator
from weft.errors import UserError
from weft.layers import Layer, Stack
from weft.sample import Minibatches, Needs, Plan, Planner, SampleConfig, Seeds, Source, Standing
from weft.sample.plan import LARGEST_AUTO, Aggregated, Growth, aggregating_pays, choose_together

MakeSource = Callable[[Standing, Communicator], Source]
MakeMinibatches = Callable[[Tensor, MakeSource], Minibatches]  # of the input rows, and where seeds come from


def make_minibatches(
    view: GraphView,
    model: nn.Module,
    config: SampleConfig,
    plan: Plan,
    seed: int,
    last_epoch: int,
    x: Tensor,
    source: MakeSource,
) -> Minibatches:
    """The minibatches of a run. Every worker decides alike."""
    stack = _check(view, model, config, plan, x)
    overlap = config.overlap and view.comm.num_workers > 1
    comm = view.comm.sibling() if overlap else view.comm
    standing = Standing(view.shard, comm)
    planner = Planner(
        view.shard, standing, comm, x, source(standing, comm), needs_of(stack), config, seed, plan == "split"
    )
    probed = planner.probe(LARGEST_AUTO)
    growth = planner.growth(probed)
    aggregated = _aggregated(view, stack, config, growth, x)
    store = planner.open_store(aggregated, probed)
    together = 1
    if plan != "independent":
        if config.macrobatch == "auto":
            wanted = growth if aggregated is None else Growth(growth.batches, growth.shorter, growth.shorter)
            together = choose_together(wanted, store.row_bytes(), config.memory_mib << 20)
        else:
            together = min(config.macrobatch, planner.source.steps)
    return Minibatches(planner, together, last_epoch, overlap)


def vertex_seeds(rows: Tensor, global_ids: Tensor, batch: int, seed: int) -> Callable[[Standing, Communicator], Seeds]:
    """Training vertices as seeds."""
    return lambda standing, comm: Seeds(rows, global_ids, batch, seed, comm, standing.own.start)


def needs_of(model: Stack) -> Needs:
    """What the layers of a model want to know of sampled vertices; of a user's own anything may be wanted."""
    native = [layer for layer in model.layers if isinstance(layer, Layer)]
    own = any(not isinstance(layer, Layer) and not getattr(layer, "any_level", False) for layer in model.layers)
    config = model.config
    return Needs(
        layers=len(model.layers),
        loops=any(layer.adds_loops for layer in native),
        degrees=own or any(layer.wants_degrees for layer in native),
        ids=own or config.input_dropout > 0 or config.attention_dropout > 0,
    )


def _check(view: GraphView, model: nn.Module, config: SampleConfig, plan: Plan, x: Tensor) -> Stack:
    if not isinstance(model, Stack):
        raise UserError(
            "minibatches have a level for each layer, so the model must be a weft.layers.Stack of layers: return one, "
            "or train over the full graph (--strategy full)"
        )
    if x.requires_grad and view.comm.num_workers > 1 and plan != "split":
        raise UserError(
            f"{view.shard.graph_name} has no features, and learned rows change with every step, so that they cannot be "
            "fetched ahead: use --strategy gsplit, which exchanges them in its steps, or --strategy full"
        )
    if config.alone_hops >= len(model.layers):
        raise UserError(
            f"sample.alone_hops is {config.alone_hops}, but the model has {len(model.layers)} layers: workers share "
            "one hop at least"
        )
    if config.method == "weighted" and view.shard.local.weight is None:
        raise UserError(f"sample.method=weighted draws by edge weight, but {view.shard.graph_name} has no weights")
    return model


def _aggregated(view: GraphView, model: Stack, config: SampleConfig, growth: Growth, x: Tensor) -> Aggregated | None:
    """Aggregates of the input, if they are to be kept: where that is exact, and by count worth it."""
    if config.cache_aggregates == "never":
        return None
    first = model.layers[0]
    name = first.input_aggregate() if isinstance(first, Layer) else None
    why_not = ""
    if name is None:
        why_not = "the first layer computes something of its own from its neighbours' rows"
    elif model.config.input_dropout > 0:
        why_not = "model.input_dropout changes the input in every step"
    elif x.requires_grad:
        why_not = "learned rows change in every step"
    if why_not or name is None:
        if config.cache_aggregates == "always":
            raise UserError(
                f"aggregates of the input cannot be kept, since {why_not}: set sample.cache_aggregates=never"
            )
        return None
    assert isinstance(first, Layer)
    reads_own = first.reads_input or model.config.residual
    if config.cache_aggregates == "auto" and not aggregating_pays(growth, growth.batches[-1], reads_own):
        return None
    return Aggregated((*name, None), view.aggregate_once(x, *name), reads_own)
