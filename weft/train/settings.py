"""The settings of training: what is learned, how long, how judged, what is kept."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TrainConfig(BaseModel):
    """How long, how judged, what is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["vertices", "links"] = Field(
        "vertices", description="what is learned: the classes of vertices, or which edges exist (minibatches)"
    )
    epochs: int = Field(100, ge=1, description="passes over the graph")
    eval_every: int = Field(
        1, ge=0, description="epochs between two evaluations over the whole graph; 0: never, the last weights count"
    )
    patience: int | None = Field(None, ge=1, description="stop after so many epochs without a better one on validation")
    metric: str = Field("auto", description="auto, accuracy, macro_f1, micro_f1 or roc_auc; judged on validation")
    select: Literal["metric", "loss"] = Field("metric", description="what on validation says which epoch is best")
    class_weights: Literal["none", "balanced"] = Field("none", description="balanced: rare classes weigh more")
    split: int = Field(0, ge=0, description="which split, where a data set has several")
    precision: Literal["float32", "bfloat16", "float64"] = Field("float32", description="of rows and dense work")
    cache_input: bool = Field(True, description="aggregate constant input once, where that is exact")
    checkpoint_every: int = Field(10, ge=0, description="epochs between two checkpoints; 0: only at the end")
    trace_epochs: int = Field(3, ge=0, description="epochs, from the second on, whose timeline is recorded")


class LinkConfig(BaseModel):
    """Which edges are kept from training (train.task=links), and how many that do not exist stand beside each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    val: float = Field(0.05, ge=0.0, lt=1.0, description="share of the edges held out for validation")
    test: float = Field(0.10, ge=0.0, lt=1.0, description="share of the edges held out for testing")
    negatives: int = Field(1, ge=1, description="pairs that are no edges beside every edge")
