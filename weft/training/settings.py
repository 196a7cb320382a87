"""The settings of training: what is learned, for how long, how it is evaluated, and what is saved."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TrainConfig(BaseModel):
    """What is learned, for how long, how it is evaluated, and what is saved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["vertices", "edges", "links"] = Field(
        "vertices", description="what is learned: the labels of vertices or of edges, or which edges exist"
    )
    epochs: int = Field(100, ge=1, description="passes over the graph")
    eval_every: int = Field(
        1,
        ge=0,
        description="epochs between two evaluations over the whole graph; 0: none, the last weights are kept",
    )
    patience: int | None = Field(None, ge=1, description="stop after so many epochs without a better one on validation")
    metric: str = Field(
        "auto",
        description="auto; of classes accuracy, macro_f1, micro_f1 or roc_auc; of numbers rmse, mae or r2; of links "
        "roc_auc, mrr or hits@K. Evaluated on every split",
    )
    select: Literal["metric", "loss"] = Field("metric", description="what on validation says which epoch is best")
    loss: Literal["auto", "mse", "mae"] = Field(
        "auto",
        description="of numbers, squared or absolute errors (auto: mse); of classes auto, which is cross entropy",
    )
    standardise: bool = Field(
        True, description="learn numbers as distances from their training mean, in standard deviations"
    )
    class_weights: Literal["none", "balanced"] = Field("none", description="balanced: rare classes weigh more")
    times: Literal["heed", "ignore"] = Field(
        "heed", description="of edges that have them: heed, no seed sees a later edge; ignore, all see all edges"
    )
    split: int = Field(0, ge=0, description="which split, where a data set has several")
    precision: Literal["float32", "bfloat16", "float64"] = Field("float32", description="of rows and dense work")
    cache_input: bool = Field(True, description="aggregate constant input once, where that is exact")
    checkpoint_every: int = Field(10, ge=0, description="epochs between two checkpoints; 0: only at the end")
    trace_epochs: int = Field(3, ge=0, description="epochs, from the second on, whose timeline is recorded")


class TrackConfig(BaseModel):
    """Which trackers are told of the run, beside its folder (docs/watching.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = Field((), description="the trackers, by name")
    project: str = Field("weft", min_length=1, description="experiment of MLflow, project of Weights & Biases")


class LinkConfig(BaseModel):
    """Which edges are kept from training (train.task=links), and which pairs that are none stand beside each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    val: float = Field(0.05, ge=0.0, lt=1.0, description="share of the edges held out for validation")
    test: float = Field(0.10, ge=0.0, lt=1.0, description="share of the edges held out for testing")
    hold_out: Literal["auto", "random", "time"] = Field(
        "auto",
        description="which edges: drawn, or the newest for testing and those before for validation; auto: by "
        "time where times are heeded",
    )
    val_edges: str | None = Field(None, description="file of the edges for validation, in the place of a share")
    test_edges: str | None = Field(None, description="file of the edges for testing, in the place of a share")
    relations: tuple[str | int, ...] | None = Field(
        None, description="relations that are learned, each among the vertices that its edges have; all unless given"
    )
    decoder: Literal["dot", "distmult", "mlp"] = Field(
        "dot", description="scores pairs of rows: their product, one weighed by relation, or a network of two layers"
    )
    negatives: int = Field(1, ge=1, description="pairs that are no edges beside every edge in training")
    replace: Literal["heads", "tails"] = Field(
        "heads", description="the end of an edge u -> v that such a pair has another of: u (heads) or v (tails)"
    )
    draw: Literal["uniform", "batch"] = Field(
        "uniform", description="other ends: drawn evenly, or those of the minibatch's other edges"
    )
    exclude: bool = Field(
        False, description="leave edges and their reverses out of the neighbourhoods in the step that learns them"
    )
    eval_negatives: int = Field(
        100, ge=1, description="pairs that are no edges among which each edge ranks in evaluation (mrr, hits@K)"
    )


class EdgeConfig(BaseModel):
    """The labelled edges of train.task=edges: a table with a row for each, which need not be an edge of the graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: str | None = Field(None, description="file of the labelled edges: csv, tsv, txt or parquet")
    source_column: str | None = Field(None, description="column of their sources; found by its name unless set")
    destination_column: str | None = Field(None, description="column of their destinations; likewise")
    label_columns: tuple[str, ...] = Field(("label",), min_length=1, description="columns of what is to be predicted")
    label_kind: Literal["auto", "classes", "numbers"] = Field(
        "auto", description="what labels are; auto: numbers where any is a fraction, else classes"
    )
    features: tuple[str, ...] = Field((), description="columns of numbers that an edge is judged by, beside its ends")
    split_column: str | None = Field(None, description="column that says train, val or test")
    time_column: str | None = Field(
        None,
        description="column of the edges' times, which heeded times of the graph need; found by its name unless set",
    )
    hold_out: Literal["auto", "random", "time"] = Field(
        "auto", description="where no column says the split: drawn, or the newest for testing; auto as link.hold_out"
    )
    val: float = Field(0.1, ge=0.0, lt=1.0, description="share for validation, where no column says the split")
    test: float = Field(0.2, ge=0.0, lt=1.0, description="share for testing, where no column says the split")
