"""A model: layers one after another with normalisation, activation, dropout and skips between them."""

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from weft.aggregate import GraphView, hash_key, hash_uniform, rematerialised
from weft.aggregate.late import hand_over, settle
from weft.errors import UserError, unknown
from weft.kernels import memory
from weft.layers.gat import GAT, GATv2
from weft.layers.gcn import GCN
from weft.layers.gin import GIN
from weft.layers.layer import Layer
from weft.layers.linear import linear, weight
from weft.layers.norm import BatchNorm, LayerNorm
from weft.layers.rgcn import RGCN
from weft.layers.sage import SAGE
from weft.layers.transformer import Transformer

NAMES = ("gcn", "sage", "gat", "gatv2", "transformer", "gin", "rgcn")
ATTENTION = ("gat", "gatv2", "transformer")
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(BaseModel):
    """What the model looks like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "gcn", description="gcn, sage, gat, gatv2, transformer, gin, rgcn, or your own as package.module:callable"
    )
    layers: int = Field(2, ge=1, description="how many layers")
    hidden: int = Field(64, ge=1, description="width between layers; with attention, of each head")
    heads: int = Field(8, ge=1, description="attention heads (gat, gatv2, transformer)")
    output_heads: int = Field(1, ge=1, description="attention heads of the last layer, averaged")
    reduce: Literal["mean", "max", "sum"] = Field("mean", description="how sage folds its neighbours")
    bases: int = Field(0, ge=0, description="matrices that the relations share; 0: one per relation (rgcn)")
    activation: Literal["relu", "elu"] = Field("relu", description="between layers")
    norm: Literal["none", "layer", "batch"] = Field("none", description="normalisation between layers")
    residual: bool = Field(False, description="add a linear skip around every layer")
    dropout: Rate = Field(0.5, description="of the rows between layers")
    input_dropout: Rate = Field(0.0, description="of the input features; turns the aggregated-input cache off")
    attention_dropout: Rate = Field(0.0, description="of the attention coefficients (gat, gatv2, transformer)")
    negative_slope: float = Field(0.2, ge=0.0, description="of the attention logits (gat, gatv2)")
    row_normalise: bool = Field(False, description="divide each vertex's features by their sum (bags of words)")
    embedding: int = Field(64, ge=1, description="width of learned rows where vertices have no features")


class Stack(nn.Module):
    """Layers in order. Layers may be a user's own: any module with `forward(graph, x)`."""

    def __init__(
        self, layers: list[nn.Module], config: ModelConfig | None = None, widths: list[int] | None = None
    ) -> None:
        super().__init__()
        self.config = config or ModelConfig()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList()
        self.skips = nn.ParameterList()
        self.widths = tuple(widths or ())
        self.embedding: nn.Parameter | None = None
        self.rematerialise = False  # compute each layer's dense part again in the backward pass
        between = (widths or [])[1:-1]
        if self.config.norm != "none":
            kind = BatchNorm if self.config.norm == "batch" else LayerNorm
            self.norms.extend(kind(width) for width in between)
        if self.config.residual:
            assert widths is not None
            self.skips.extend(weight(out, into) for into, out in itertools.pairwise(widths))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        remakes = self.rematerialise and self.training and torch.is_grad_enabled()
        for depth in range(len(self.layers)):
            level = graph.level(depth)
            x = level.enter(x)
            x = self._rematerialised(level, x, depth) if remakes else self._segment(level, x, depth)
        last = self.layers[-1]
        return x + last.bias.to(x.dtype) if isinstance(last, Layer) and last.bias is not None else x

    def _rematerialised(self, graph: GraphView, x: Tensor, depth: int) -> Tensor:
        parameters = [*self.layers[depth].parameters()]
        parameters += [*self.skips[depth : depth + 1]]
        if depth > 0:
            before = self.layers[depth - 1]
            parameters += [before.bias] if isinstance(before, Layer) and before.bias is not None else []
            parameters += [*self.norms[depth - 1].parameters()] if self.norms else []
        return rematerialised(graph, lambda rows: self._segment(graph, rows, depth, keeps_input=True), x, parameters)

    def _segment(self, graph: GraphView, x: Tensor, depth: int, keeps_input: bool = False) -> Tensor:
        """What stands between two layers, and then a layer up to its bias: one sum or product ends each segment."""
        x = self._between(graph, x, depth, keeps_input) if depth else graph.dropout(x, self.config.input_dropout)
        layer = self.layers[depth]
        if isinstance(layer, Layer):
            if depth and not self.config.residual:
                hand_over(x)
            with graph.late_results(self._knows_late(depth)):
                out = layer.combine(graph, x)
        else:
            view = graph if getattr(layer, "any_level", False) else graph.squared()
            out = layer(view, x)[: graph.num_out]
        return out + linear(graph.own(x), self.skips[depth]) if self.config.residual else out

    def _knows_late(self, depth: int) -> bool:
        """Whether all that touches a layer's output, up to the next product, knows that some rows may come late."""
        if self.config.norm != "none" or self.config.residual or depth + 1 == len(self.layers):
            return False
        layer, following = self.layers[depth], self.layers[depth + 1]
        return isinstance(layer, Layer) and layer.late_output and isinstance(following, Layer) and following.late_input

    def _between(self, graph: GraphView, x: Tensor, depth: int, keeps_input: bool) -> Tensor:
        """Bias, normalisation, activation and dropout after the layer before; in one pass where nothing intervenes."""
        before, p, relu = self.layers[depth - 1], self.config.dropout, self.config.activation == "relu"
        bias = before.bias if isinstance(before, Layer) else None
        if self.config.norm == "none":
            if not relu:
                return graph.elu_dropout(x, bias, p)
            free = self.config.residual or (isinstance(before, Layer) and before.output_is_free)
            if not free or keeps_input:
                settle(x)
                x = _copy(x)
            return graph.relu_dropout_(x, bias, p)
        x = self.norms[depth - 1](graph, x if bias is None else x + bias.to(x.dtype))
        x = torch.relu(x) if relu else nn.functional.elu(x)
        return graph.dropout(x, p)


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


def build_model(config: ModelConfig, num_in: int, num_out: int, num_relations: int = 0) -> nn.Module:
    """The model of a config, between `num_in` features and `num_out` outputs, on a graph of `num_relations`.

    A user's own is `package.module:callable`, called as callable(num_in, num_out, config); what it returns is called
    as model(graph, x).
    """
    if ":" in config.name:
        model = _import_callable(config.name)(num_in, num_out, config)
        if not isinstance(model, nn.Module):
            raise UserError(f"model {config.name} returned a {type(model).__name__}, not a torch.nn.Module")
        return model
    if config.name == "rgcn" and num_relations == 0:
        raise UserError(
            "model rgcn learns from edges of several relations, but this graph has one kind of edges: ingest it with "
            "--relation-column, or use another model"
        )
    layers: list[nn.Module] = []
    widths = [num_in]
    for depth in range(config.layers):
        last = depth == config.layers - 1
        layer = _build_layer(config, widths[-1], num_out if last else config.hidden, last, num_relations)
        layers.append(layer)
        widths.append(layer.num_out)
    return Stack(layers, config, widths)


def _import_callable(reference: str) -> Callable[..., object]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"model {reference} cannot be imported ({error}): it must be on the Python path") from None
    if not callable(found):
        raise UserError(f"model {reference} is not callable")
    return cast(Callable[..., object], found)


def _build_layer(config: ModelConfig, num_in: int, num_out: int, last: bool, num_relations: int) -> Layer:
    if config.name == "gcn":
        return GCN(num_in, num_out)
    if config.name == "sage":
        return SAGE(num_in, num_out, config.reduce)
    if config.name == "gin":
        return GIN(num_in, num_out)
    if config.name == "rgcn":
        return RGCN(num_in, num_out, num_relations, config.bases)
    heads = config.output_heads if last else config.heads
    if config.name == "transformer":
        return Transformer(num_in, num_out, heads, not last, config.attention_dropout)
    kind = GAT if config.name == "gat" else GATv2
    return kind(num_in, num_out, heads, not last, config.negative_slope, config.attention_dropout)


def add_embedding(model: nn.Module, width: int, global_ids: Tensor, seed: int) -> None:
    """Learned input rows for the vertices that this worker owns; a vertex starts alike wherever it lives."""
    uniform = hash_uniform(global_ids, width, hash_key(seed, 0x656D62))
    model.embedding = nn.Parameter((uniform * 2 - 1) * math.sqrt(3.0 / width))


def replicated_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that every worker holds alike: all but a stack's learned input rows."""
    own = getattr(model, "embedding", None)
    return [parameter for parameter in model.parameters() if parameter is not own]


def check_model(config: ModelConfig) -> None:
    """Refuses combinations that make no sense, with the reason."""
    if ":" in config.name:
        return
    if config.name not in NAMES:
        raise unknown("model", config.name, NAMES)
    if config.name not in ATTENTION and config.attention_dropout > 0:
        raise UserError(
            f"model.attention_dropout is for {', '.join(ATTENTION)}: {config.name} has no attention to drop"
        )
    if config.name != "rgcn" and config.bases > 0:
        raise UserError(f"model.bases is for rgcn: {config.name} has no matrices per relation to share")
