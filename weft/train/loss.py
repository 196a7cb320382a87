"""The loss over all workers' training rows: a sum divided by the global count, never a mean of means."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from weft.comm import Communicator

ClassWeights = Literal["none", "balanced"]


class GlobalLoss:
    """Cross entropy of a worker's own training rows, divided by the global count (weighted where classes are)."""

    def __init__(
        self, y: Tensor, rows: Tensor, num_classes: int, class_weights: ClassWeights, comm: Communicator
    ) -> None:
        self.multi_label = y.dim() == 2
        self.rows = rows  # local ids of the training vertices whose target is known
        self.y = y[rows]
        counts = self._class_counts(num_classes)
        comm.all_reduce(counts, "control", "class counts")
        self.weights: Tensor | None = None
        if self.multi_label:
            self.divisor = counts[-1].clamp(min=1)  # known labels
            if class_weights == "balanced":
                positive = counts[:num_classes].clamp(min=1)
                negative = (counts[num_classes : 2 * num_classes] - counts[:num_classes]).clamp(min=0)
                self.weights = (negative / positive).clamp(min=1e-3)
        else:
            self.divisor = counts.sum().clamp(min=1)
            if class_weights == "balanced":
                present = (counts > 0).sum()
                self.weights = counts.sum() / (present * counts.clamp(min=1))
        self.count = int(counts[-1] if self.multi_label else counts.sum())

    def _class_counts(self, num_classes: int) -> Tensor:
        if not self.multi_label:
            return torch.bincount(self.y, minlength=num_classes).double()
        positive, known = (self.y == 1).sum(0).double(), (self.y >= 0).sum(0).double()
        return torch.cat([positive, known, known.sum()[None]])

    def __call__(self, logits: Tensor) -> Tensor:
        """This worker's share: the shares of all workers add up to the loss."""
        return self.share(logits[self.rows], self.y, self.divisor)

    def weigh(self, y: Tensor) -> Tensor:
        """What targets count in a divisor, float64: those of a minibatch, summed over workers, are its own."""
        if self.multi_label:
            return (y >= 0).sum().double()
        return torch.tensor(float(len(y)), dtype=torch.float64) if self.weights is None else self.weights[y].sum()

    def share(self, logits: Tensor, y: Tensor, divisor: Tensor) -> Tensor:
        """The loss of some rows, all of whose targets count, over a divisor that is the same for all workers."""
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        weights = None if self.weights is None else self.weights.to(logits.dtype)
        if not self.multi_label:
            total = functional.cross_entropy(logits, y, weight=weights, reduction="sum")
            return total / divisor.to(logits.dtype)
        known = y >= 0
        target = y.clamp(min=0).to(logits.dtype)
        each = functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weights, reduction="none")
        return (each * known).sum() / divisor.to(logits.dtype)
