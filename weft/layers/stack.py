"""A model: layers one after another with normalisation, activation, dropout and skips between them."""

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Annotated, Literal, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from weft.aggregate import GraphView, hash_key, hash_uniform
from weft.errors import UserError, unknown
from weft.layers.gat import GAT, GATv2
from weft.layers.gcn import GCN
from weft.layers.gin import GIN
from weft.layers.layer import Layer
from weft.layers.linear import linear, weight
from weft.layers.norm import BatchNorm, LayerNorm
from weft.layers.rgcn import RGCN
from weft.layers.sage import SAGE

NAMES = ("gcn", "sage", "gat", "gatv2", "gin", "rgcn")
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(BaseModel):
    """What the model looks like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("gcn", description="gcn, sage, gat, gatv2, gin, rgcn, or your own as package.module:callable")
    layers: int = Field(2, ge=1, description="how many layers")
    hidden: int = Field(64, ge=1, description="width between layers; for gat and gatv2 of each head")
    heads: int = Field(8, ge=1, description="attention heads (gat, gatv2)")
    output_heads: int = Field(1, ge=1, description="attention heads of the last layer, averaged (gat, gatv2)")
    reduce: Literal["mean", "max", "sum"] = Field("mean", description="how sage folds its neighbours")
    bases: int = Field(0, ge=0, description="matrices that the relations share; 0: one per relation (rgcn)")
    activation: Literal["relu", "elu"] = Field("relu", description="between layers")
    norm: Literal["none", "layer", "batch"] = Field("none", description="normalisation between layers")
    residual: bool = Field(False, description="add a linear skip around every layer")
    dropout: Rate = Field(0.5, description="of the rows between layers")
    input_dropout: Rate = Field(0.0, description="of the input features; turns the aggregated-input cache off")
    attention_dropout: Rate = Field(0.0, description="of the attention coefficients (gat, gatv2)")
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
        self.embedding: nn.Parameter | None = None
        between = (widths or [])[1:-1]
        if self.config.norm != "none":
            kind = BatchNorm if self.config.norm == "batch" else LayerNorm
            self.norms.extend(kind(width) for width in between)
        if self.config.residual:
            assert widths is not None
            self.skips.extend(weight(out, into) for into, out in itertools.pairwise(widths))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        x = graph.dropout(x, self.config.input_dropout)
        last = len(self.layers) - 1
        for depth, layer in enumerate(self.layers):
            before = x
            fused = isinstance(layer, Layer) and self._fuses(layer) and depth < last
            x = layer.combine(graph, x) if fused else layer(graph, x)  # type: ignore[operator]
            if self.config.residual:
                x = x + linear(before, self.skips[depth])
            if fused:
                bias, p = cast(Layer, layer).bias, self.config.dropout
                relu = self.config.activation == "relu"
                x = graph.relu_dropout_(x, bias, p) if relu else graph.elu_dropout(x, bias, p)
            elif depth < last:
                x = self._between(graph, x, depth)
        return x

    def _fuses(self, layer: Layer) -> bool:
        """Bias, activation and dropout in one pass, where nothing stands between them; relu does it in place."""
        return self.config.norm == "none" and (layer.output_is_free or self.config.activation == "elu")

    def _between(self, graph: GraphView, x: Tensor, depth: int) -> Tensor:
        if self.config.norm != "none":
            x = self.norms[depth](graph, x)
        x = torch.relu(x) if self.config.activation == "relu" else nn.functional.elu(x)
        return graph.dropout(x, self.config.dropout)


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
    kind = GAT if config.name == "gat" else GATv2
    heads = config.output_heads if last else config.heads
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
    if config.name not in ("gat", "gatv2") and config.attention_dropout > 0:
        raise UserError(f"model.attention_dropout is for gat and gatv2: {config.name} has no attention to drop")
    if config.name != "rgcn" and config.bases > 0:
        raise UserError(f"model.bases is for rgcn: {config.name} has no matrices per relation to share")
