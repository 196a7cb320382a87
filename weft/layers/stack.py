"""A model: layers one after another with normalisation, activation, dropout and skips between them."""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView, rematerialised
from weft.errors import UserError
from weft.graph.typedrows import Rows, TypedRows
from weft.kernels import memory
from weft.kernels.hash import hash_key, hash_uniform
from weft.layers.config import ModelConfig, check_options
from weft.layers.edge_reads import NO_READS, EdgeReads
from weft.layers.encoder import Encoded, TypeEncoder
from weft.layers.initial import by_fan_in
from weft.layers.learned_columns import LearnedColumn, LearnedColumns, width_of
from weft.layers.linear import linear_of
from weft.layers.norm import BatchNorm, LayerNorm
from weft.layers.output import OutputLinear
from weft.layers.registry import LayerKind, Place, layer_kind, layer_names
from weft.layers.traits import traits_of
from weft_function.own import current_folder_last, import_own

GIVEN = "given"  # stands for a module in the name of a model that was given as an object
Given = nn.Module | Callable[..., nn.Module]  # a model, or what builds it: (num_in, num_out, config) -> model


class Stack(nn.Module):
    """Layers in order. Layers may be a user's own: any module with `forward(graph, x)`.

    Before an `output` the last layer is one like the others, and a linear map makes the outputs of its rows.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        config: ModelConfig | None = None,
        widths: list[int] | None = None,
        output: OutputLinear | None = None,
    ) -> None:
        super().__init__()
        self.config = config or ModelConfig()
        self.layers = nn.ModuleList(layers)
        self.output = output
        self.norms = nn.ModuleList()
        self.skips = nn.ParameterList()
        self.widths = tuple(widths or ())
        self.embedding: nn.Parameter | None = None
        self.columns: LearnedColumns | None = None  # makes learned rows of columns of the input
        self.encoder: TypeEncoder | None = None  # of graphs whose vertices are of several types
        self.rematerialise = False  # compute each layer's dense part again in the backward pass
        between = (widths or [])[1:-1] if output is None else (widths or [])[1:]
        if self.config.norm != "none":
            kind = BatchNorm if self.config.norm == "batch" else LayerNorm
            self.norms.extend(kind(width) for width in between)
        if self.config.residual:
            assert widths is not None
            self.skips.extend(by_fan_in(out, into) for into, out in itertools.pairwise(widths))

    def forward(self, graph: GraphView, x: Rows) -> Tensor:
        out = self._encoded(graph, x) if isinstance(x, TypedRows) else x
        remakes = self.rematerialise and self.training and torch.is_grad_enabled()
        for depth in range(len(self.layers)):
            level = graph.level(depth)
            out = level.enter(out)
            if depth == 0 and self.columns is not None:
                out = self.columns(out)
            out = self._rematerialised(level, out, depth) if remakes else self._segment(level, out, depth)
        if self.output is not None:
            return cast(Tensor, self.output(level, self._between(level, out, len(self.layers), keeps_input=remakes)))
        bias = _pending_bias(self.layers[-1])
        return out if bias is None else out + bias.to(out.dtype)

    def _encoded(self, graph: GraphView, x: TypedRows) -> Tensor:
        """Rows of one width, of the vertices that the first layer reads."""
        if self.encoder is None:
            raise UserError("vertices are of several types, with features of their own, and the model has no encoder")
        rows: Tensor = self.encoder(x.first(graph.level(0).num_rows))
        return rows

    def _rematerialised(self, graph: GraphView, x: Tensor, depth: int) -> Tensor:
        parameters = [*self.layers[depth].parameters()]
        parameters += [*self.skips[depth : depth + 1]]
        if depth > 0:
            bias = _pending_bias(self.layers[depth - 1])
            parameters += [] if bias is None else [bias]
            parameters += [*self.norms[depth - 1].parameters()] if self.norms else []
        return rematerialised(
            graph.driver, lambda rows: self._segment(graph, rows, depth, keeps_input=True), x, parameters
        )

    def _segment(self, graph: GraphView, x: Tensor, depth: int, keeps_input: bool = False) -> Tensor:
        """What stands between two layers, and then a layer up to its bias: one sum or product ends each segment."""
        x = self._between(graph, x, depth, keeps_input) if depth else graph.dropout(x, self.config.input_dropout)
        layer = self.layers[depth]
        traits = traits_of(layer)
        view = graph if traits.any_level else graph.squared()
        out = graph.own(layer(view, x, add_bias=False) if traits.fuses_bias else layer(view, x))
        return out + linear_of(graph, graph.own(x), self.skips[depth]) if self.config.residual else out

    def _between(self, graph: GraphView, x: Tensor, depth: int, keeps_input: bool) -> Tensor:
        """Bias, normalisation, activation and dropout after the layer before; in one pass where nothing intervenes."""
        before, p, relu = self.layers[depth - 1], self.config.dropout, self.config.activation == "relu"
        bias = _pending_bias(before)
        if self.config.norm == "none":
            if not relu:
                return graph.elu_dropout(x, bias, p)
            free = self.config.residual or (traits_of(before).output_is_free and not before._forward_hooks)
            if not free or keeps_input:
                x = _copy(x)
            return graph.relu_dropout_(x, bias, p)
        x = self.norms[depth - 1](graph, x if bias is None else x + bias.to(x.dtype))
        x = torch.relu(x) if relu else nn.functional.elu(x)
        return graph.dropout(x, p)


def _pending_bias(layer: nn.Module) -> nn.Parameter | None:
    """The bias that a layer has left to whoever comes next."""
    return cast(nn.Parameter | None, layer.bias) if traits_of(layer).fuses_bias else None


def _copy(x: Tensor) -> Tensor:
    """Rows that may be written to, in memory that is used again."""
    copied: Tensor = _Copy.apply(x)  # type: ignore[no-untyped-call]
    return copied


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return memory.empty_like(x).copy_(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def edges_to_read(
    config: ModelConfig, num_features: int, weighted: bool, graph_name: str, given: Given | None = None
) -> EdgeReads:
    """What the layers that `build_model` makes are to read of a graph's edges, which have so many features."""
    kind = _named(config.name) if given is None else given
    if not isinstance(kind, LayerKind):  # a user's own reads what it likes
        return NO_READS
    if config.edge_features == "on" and not num_features:
        raise UserError(
            f"model.edge_features=on, but edges of {graph_name} have no features: ingest it with --edge-features"
        )
    if config.edge_weights and not weighted:
        raise UserError(f"model.edge_weights=true, but edges of {graph_name} have none: ingest it with --weight-column")
    reads = "edge_features" in kind.options and config.edge_features != "off"
    return EdgeReads(num_features if reads else 0, config.edge_weights and "edge_weights" in kind.options)


def build_model(
    config: ModelConfig,
    num_in: int,
    num_out: int,
    num_relations: int = 0,
    given: Given | None = None,
    edges: EdgeReads = NO_READS,
    columns: Sequence[LearnedColumn] = (),
    type_widths: Sequence[int] = (),
    type_columns: Sequence[Sequence[LearnedColumn]] = (),
) -> nn.Module:
    """The model of a config, between `num_in` features and `num_out` outputs, on a graph of `num_relations`.

    `edges`: what its layers are to read of edges, as `edges_to_read` says. `columns`: those of the features in whose
    place learned rows come before the first layer; a function gets the number of columns that there are then.
    `type_widths`: the features of each type of vertices, where they are of several; an encoder makes `num_in` of them.
    `type_columns`: those of each type in whose place learned rows come.

    A user's own is `package.module:name`: a function that is called as name(num_in, num_out, config) and returns what
    is called as model(graph, x), or the name of a layer that the module registers. `given` is such a function, or the
    model itself, where it was given as an object; the config then names it `given:NAME`.
    """
    model = _build(config, num_in, num_out, num_relations, given, edges, columns, len(type_widths))
    if not type_widths:
        return model
    encoder = TypeEncoder(type_widths, num_in, type_columns, config.column_embedding)
    if not isinstance(model, Stack):
        return Encoded(model, encoder)
    model.encoder = encoder
    return model


def _build(
    config: ModelConfig,
    num_in: int,
    num_out: int,
    num_relations: int,
    given: Given | None,
    edges: EdgeReads,
    columns: Sequence[LearnedColumn],
    num_types: int,
) -> nn.Module:
    if isinstance(given, nn.Module):
        if columns and getattr(given, "columns", None) is None:
            raise UserError(
                "the graph has columns of which a row is learned for each value, and a module that is made already has "
                "none: give a function that builds the model, or a weft.layers.Stack with its `columns` set"
            )
        return copy.deepcopy(given)
    num_features, num_in = num_in, width_of(columns, num_in, config.column_embedding)
    kind = _named(config.name) if given is None else given
    if not isinstance(kind, LayerKind):
        with current_folder_last():  # which modules that the function imports may lie in
            model = kind(num_in, num_out, config)
        if not isinstance(model, nn.Module):
            raise UserError(f"model {config.name} returned a {type(model).__name__}, not a torch.nn.Module")
        if columns and not isinstance(model, Stack):
            raise UserError(
                f"model {config.name} returned a {type(model).__name__}, and a graph with learned columns wants a "
                "weft.layers.Stack, which makes rows of them: return one, or ingest without --learned-columns"
            )
        return _with_columns(model, columns, num_features, config)
    check_options(config, kind)
    layers: list[nn.Module] = []
    widths = [num_in]
    for depth in range(config.layers):
        last = depth == config.layers - 1 and config.output == "layer"
        place = Place(widths[-1], num_out if last else config.hidden, last, num_relations, edges, num_types)
        layer = kind.build(config, place)
        layers.append(layer)
        widths.append(cast(int, layer.num_out))
    output = OutputLinear(widths[-1], num_out) if config.output == "linear" else None
    return _with_columns(Stack(layers, config, widths, output), columns, num_features, config)


def _with_columns(
    model: nn.Module, columns: Sequence[LearnedColumn], num_features: int, config: ModelConfig
) -> nn.Module:
    if columns:
        assert isinstance(model, Stack)
        model.columns = LearnedColumns(columns, num_features, config.column_embedding)
    return model


def _named(name: str) -> Callable[..., object] | LayerKind:
    """What the name of a model stands for."""
    if name.startswith(f"{GIVEN}:"):
        raise UserError(
            f"the model of this run, {name.partition(':')[2]}, was given as an object of a script or notebook and "
            "cannot be imported: open the run there, as weft.Run(PATH, model=...), or go on with it there, with "
            "weft.train(..., model=..., resume=True)"
        )
    return _import(name) if ":" in name else layer_kind(name)


def _import(reference: str) -> Callable[..., object] | LayerKind:
    """What `package.module:name` stands for."""
    module, _, name = reference.partition(":")
    try:
        imported = import_own(module)
        if not hasattr(imported, name) and name in layer_names():
            return layer_kind(name)
        found = getattr(imported, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model {reference} cannot be imported ({error}): it must be on the Python path or in the current folder"
        ) from None
    if not callable(found):
        raise UserError(f"model {reference} is not callable")
    return cast(Callable[..., object], found)


def add_embedding(model: nn.Module, width: int, global_ids: Tensor, seed: int) -> None:
    """Learned input rows for the vertices that this worker owns; a vertex starts alike wherever it lives."""
    uniform = hash_uniform(global_ids, width, hash_key(seed, 0x656D62))
    model.embedding = nn.Parameter((uniform * 2 - 1) * math.sqrt(3.0 / width))


def replicated_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that every worker holds alike: all but a stack's learned input rows."""
    own = getattr(model, "embedding", None)
    return [parameter for parameter in model.parameters() if parameter is not own]
