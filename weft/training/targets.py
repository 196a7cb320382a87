"""What is to be predicted of vertices or edges, classes or numbers: its loss, and how predictions are judged."""

from typing import Protocol

from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.training.evaluate import choose_metric, score
from weft.training.loss import GlobalLoss
from weft.training.numbers import NumberLoss, Numbers
from weft.training.settings import TrainConfig

RowLoss = GlobalLoss | NumberLoss


class Targets(Protocol):
    """Targets of this worker's rows."""

    y: Tensor  # [N, ...]
    metric: str

    def fit(self, train: Tensor) -> None:
        """Makes ready to learn; `train` are the rows, bool [N] or numbers, that may be learned from."""
        ...

    @property
    def learned(self) -> Tensor:
        """What losses compare outputs with, a row for each of `y`."""
        ...

    def loss(self, rows: Tensor, weighted: bool = True) -> RowLoss:
        """Of these rows, whose targets are known, over all workers; `weighted`: classes weigh as the settings say."""
        ...

    def score(self, out: Tensor, masks: dict[str, Tensor]) -> dict[str, float]:
        """The metric on each split, over all workers' rows; a split without a known target is left out."""
        ...

    def predictions(self, out: Tensor) -> Tensor:
        """What a model's outputs are shown and exported as."""
        ...


class Classes:
    """Targets that are classes, one or several of each row."""

    def __init__(self, y: Tensor, num_classes: int, config: TrainConfig, graph: DistributedGraph) -> None:
        self.y, self._num_classes, self._config, self._graph = y, num_classes, config, graph
        self.metric = choose_metric(config.metric, y.dim() == 2)
        if config.loss != "auto":
            raise UserError(
                f"train.loss={config.loss} is for numbers, and the labels of {graph.shard.graph_name} are classes: "
                "leave it out, or ingest them with --label-kind numbers"
            )

    def fit(self, train: Tensor) -> None: ...

    @property
    def learned(self) -> Tensor:
        return self.y

    def loss(self, rows: Tensor, weighted: bool = True) -> GlobalLoss:
        weights = self._config.class_weights if weighted else "none"
        return GlobalLoss(self.y, rows, self._num_classes, weights, self._graph.comm)

    def score(self, out: Tensor, masks: dict[str, Tensor]) -> dict[str, float]:
        return score(out, self.y, masks, self.metric, self._graph)

    def predictions(self, out: Tensor) -> Tensor:
        return out


def make_targets(
    y: Tensor, num_classes: int, config: TrainConfig, graph: DistributedGraph, model: nn.Module
) -> Targets:
    """Of this worker's `y`: float ones are numbers, of which the model learns the scale; others are classes."""
    if y.is_floating_point():
        return Numbers(y, config, model, graph.comm, graph.shard.graph_name)
    return Classes(y, num_classes, config, graph)
