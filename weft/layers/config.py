"""What a model looks like, as a run's settings say it. Which layers there are, and what is for which, they say."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.aggregate.reducers import Traits
from weft.errors import UserError
from weft.layers import gat, gcn, gin, hgt, rgat, rgcn, sage, transformer  # noqa: F401  they register themselves
from weft.layers.registry import LayerKind, layer_kind, layer_names

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


def _whose(option: str) -> str:
    return ", ".join(layer_names(option))


class ModelConfig(BaseModel):
    """What the model looks like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("gcn", description=f"{', '.join(layer_names())}, or your own as package.module:name")
    layers: int = Field(2, ge=1, description="how many layers")
    hidden: int = Field(
        64, ge=1, description="width between layers; with attention, of each head; of hgt, of all heads"
    )
    heads: int = Field(8, ge=1, description=f"attention heads ({_whose('heads')})")
    output_heads: int = Field(1, ge=1, description="attention heads of the last layer, averaged")
    reduce: Literal["mean", "max", "sum"] = Field(
        "mean", description=f"how in-neighbours are folded ({_whose('reduce')})"
    )
    bases: int = Field(
        0, ge=0, description=f"matrices that the relations share; 0: one per relation ({_whose('bases')})"
    )
    activation: Literal["relu", "elu"] = Field("relu", description="between layers")
    norm: Literal["none", "layer", "batch"] = Field("none", description="normalisation between layers")
    residual: bool = Field(False, description="add a linear skip around every layer")
    output: Literal["layer", "linear"] = Field(
        "layer", description="made by the last layer; or by a linear map behind it, which then is hidden wide, too"
    )
    dropout: Rate = Field(0.5, description="of the rows between layers")
    input_dropout: Rate = Field(0.0, description="of the input features; turns the aggregated-input cache off")
    attention_dropout: Rate = Field(0.0, description=f"of the attention coefficients ({_whose('attention_dropout')})")
    negative_slope: float = Field(0.2, ge=0.0, description=f"of the attention logits ({_whose('negative_slope')})")
    row_normalise: bool = Field(False, description="divide each vertex's features by their sum (bags of words)")
    edge_features: Literal["auto", "on", "off"] = Field(
        "auto", description=f"read what edges carry, auto: where they carry something ({_whose('edge_features')})"
    )
    edge_weights: bool = Field(False, description=f"read edge weights, as gcn always does ({_whose('edge_weights')})")
    column_embedding: int = Field(
        16, ge=1, description="width of the learned row of each value of a learned column (weft ingest)"
    )
    embedding: int = Field(64, ge=1, description="width of learned rows where vertices have no features")


def check_model(config: ModelConfig) -> None:
    """Refuses combinations that make no sense, with the reason; of code of your own, when it is imported."""
    if ":" not in config.name:
        check_options(config, layer_kind(config.name))


def check_options(config: ModelConfig, kind: LayerKind) -> None:
    """Refuses settings that are for other layers."""
    if config.attention_dropout > 0 and "attention_dropout" not in kind.options:
        raise UserError(
            f"model.attention_dropout is for {_whose('attention_dropout')}: {kind.name} has no attention to drop"
        )
    if config.edge_features == "on" and "edge_features" not in kind.options:
        raise UserError(f"model.edge_features=on is for {_whose('edge_features')}: {kind.name} reads none")
    if config.edge_weights and "edge_weights" not in kind.options:
        raise UserError(f"model.edge_weights is for {_whose('edge_weights')}, not {kind.name}: leave it out")
    if config.bases > 0 and "bases" not in kind.options:
        raise UserError(f"model.bases is for {_whose('bases')}: {kind.name} has no matrices per relation to share")


def reducer_traits(config: ModelConfig) -> Traits:
    """Of what the layers' aggregations fold with; of a model of your own, whatever it is, it is known when it runs."""
    return Traits() if ":" in config.name else layer_kind(config.name).reducer(config)
