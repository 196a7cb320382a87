"""Numbers that are predicted: their loss, their scale, and how predictions of them are judged."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.splits import known
from weft.training.evaluate import choose_number_metric
from weft.training.metrics import error_sums, from_errors
from weft.training.settings import TrainConfig


class TargetScale(nn.Module):
    """From what a model learns to the numbers that it predicts: z * std + mean, of each target.

    It is a part of the model, so that it is saved with the weights, and applied unchanged wherever they are used.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_targets: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_targets, dtype=torch.float64))
        self.register_buffer("std", torch.ones(num_targets, dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:  # [N, T]
        out: Tensor = z.double() * self.std + self.mean
        return out

    def reduced(self, y: Tensor) -> Tensor:
        """What is learned in the place of y [N, T]; NaN stays NaN."""
        return (y.double() - self.mean) / self.std

    def fit(self, y: Tensor, comm: Communicator) -> None:
        """Takes the mean and the standard deviation of all workers' y [R, T], in two passes."""
        has = ~y.isnan()
        values = torch.where(has, y, 0.0).double()
        sums = torch.stack([has.sum(0).double(), values.sum(0)])
        comm.all_reduce(sums, "control", "means of targets")
        count = sums[0].clamp(min=1)
        self.mean.copy_(sums[1] / count)
        squares = torch.where(has, values - self.mean, 0.0).square().sum(0)
        comm.all_reduce(squares, "control", "spreads of targets")
        std = (squares / count).sqrt()
        self.std.copy_(torch.where(std > 0, std, 1.0))


class NumberLoss:
    """Errors of a worker's own training rows, squared or absolute, divided by how many numbers all workers know."""

    multi_label = False

    def __init__(self, y: Tensor, rows: Tensor, absolute: bool, comm: Communicator) -> None:
        """`y` [N, T]: what is learned, NaN where it is unknown."""
        self.rows, self.y, self._absolute = rows, y[rows], absolute
        self.divisor = self.weigh(self.y)
        comm.all_reduce(self.divisor, "control", "known targets")
        self.count = int(self.divisor)
        self.divisor.clamp_(min=1)

    def __call__(self, out: Tensor) -> Tensor:
        """This worker's share: the shares of all workers add up to the loss."""
        return self.share(out[self.rows], self.y, self.divisor)

    def weigh(self, y: Tensor) -> Tensor:
        """What targets count in a divisor, float64."""
        return (~y.isnan()).sum().double()

    def share(self, out: Tensor, y: Tensor, divisor: Tensor) -> Tensor:
        """The loss of some rows over a divisor that is the same for all workers."""
        if out.dtype == torch.bfloat16:
            out = out.float()
        has = ~y.isnan()
        target = torch.where(has, y, 0.0).to(out.dtype)
        out = torch.where(has, out, target)
        error = functional.l1_loss if self._absolute else functional.mse_loss
        return error(out, target, reduction="sum") / divisor.to(out.dtype)


class Numbers:
    """Targets that are numbers."""

    def __init__(self, y: Tensor, config: TrainConfig, model: nn.Module, comm: Communicator, graph_name: str) -> None:
        """`y` [N] or [N, T] of this worker, NaN where it is unknown. The model gets the scale as a part."""
        self.y = y if y.dim() == 2 else y[:, None]
        self.metric = choose_number_metric(config.metric)
        if config.class_weights != "none":
            raise UserError(
                f"train.class_weights={config.class_weights} weighs classes, and the labels of {graph_name} are "
                "numbers: leave it out"
            )
        self._config, self._comm = config, comm
        self.scale = TargetScale(self.y.shape[1]).to(comm.device)
        model.target_scale = self.scale

    def fit(self, train: Tensor) -> None:
        """Makes ready to learn; `train` are the rows of this worker that may be learned from."""
        if self._config.standardise:
            self.scale.fit(self.y[train], self._comm)

    @property
    def learned(self) -> Tensor:
        """What losses compare outputs with, [N, T]."""
        return self.scale.reduced(self.y)

    def loss(self, rows: Tensor, weighted: bool = True) -> NumberLoss:
        return NumberLoss(self.learned, rows, self._config.loss == "mae", self._comm)

    def score(self, out: Tensor, masks: dict[str, Tensor]) -> dict[str, float]:
        """The metric on each split, over all workers' rows; a split without a known target is left out."""
        predicted, values = self.predictions(out), {}
        for split, mask in masks.items():
            rows = (mask & known(self.y)).nonzero().squeeze(1)
            sums = error_sums(predicted[rows], self.y[rows], self.scale.mean)
            self._comm.all_reduce(sums, "control", f"{split} errors")
            values[split] = from_errors(self.metric, sums)
        return {split: value for split, value in values.items() if not math.isnan(value)}

    def predictions(self, out: Tensor) -> Tensor:
        """The numbers that outputs stand for, float32 or float64 [N, T]."""
        numbers: Tensor = self.scale(out)
        return numbers.to(out.dtype)
