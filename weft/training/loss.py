"""The loss over all workers' training rows: a sum divided by the global count, never a mean of means."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from weft.comm import Communicator
from weft.kernels import gather, memory, scatter_add

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
        if self.multi_label:
            return self.share(logits[self.rows], self.y, self.divisor)
        return self._entropy(logits, self.rows, self.y, self.divisor)

    def weigh(self, y: Tensor) -> Tensor:
        """What targets count in a divisor, float64: those of a minibatch, summed over workers, are its own."""
        if self.multi_label:
            return (y >= 0).sum().double()
        return torch.tensor(float(len(y)), dtype=torch.float64) if self.weights is None else self.weights[y].sum()

    def share(self, logits: Tensor, y: Tensor, divisor: Tensor) -> Tensor:
        """The loss of some rows, all of whose targets count, over a divisor that is the same for all workers."""
        if not self.multi_label:
            return self._entropy(logits, None, y, divisor)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        weights = None if self.weights is None else self.weights.to(logits.dtype)
        known = y >= 0
        target = y.clamp(min=0).to(logits.dtype)
        each = functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weights, reduction="none")
        return (each * known).sum() / divisor.to(logits.dtype)

    def _entropy(self, logits: Tensor, rows: Tensor | None, y: Tensor, divisor: Tensor) -> Tensor:
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        counts = None if self.weights is None else self.weights.to(logits.dtype)[y]
        total: Tensor = _CrossEntropy.apply(logits, rows, y, counts)  # type: ignore[no-untyped-call]
        return total / divisor.to(logits.dtype)


class _CrossEntropy(torch.autograd.Function):
    """Of some rows of the logits [N, C] or all of them, each as often as it counts, added up.

    Torch's own goes over the rows' gradients three times, in fresh memory each time, while nothing else can go on:
    the forward pass has ended, and the backward pass has not begun.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor | None, y: Tensor, counts: Tensor | None) -> Tensor:
        picked = logits.contiguous() if rows is None else gather(logits, rows)
        logs = torch.log_softmax(picked, 1, out=memory.empty_like(picked))
        ctx.save_for_backward(logs, rows, y, counts)
        ctx.num_rows = logits.shape[0]
        each = logs.gather(1, y[:, None]).squeeze(1)
        return -(each if counts is None else each * counts).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logs, rows, y, counts = ctx.saved_tensors
        d_picked = torch.exp(logs, out=memory.empty_like(logs))
        d_picked.scatter_add_(1, y[:, None], d_picked.new_full((1, 1), -1.0).expand(len(y), 1))
        d_picked.mul_(grad if counts is None else (grad * counts)[:, None])
        if rows is None:
            return d_picked, None, None, None
        d_logits = memory.empty((ctx.num_rows, logs.shape[1]), logs.dtype, logs.device).zero_()
        return scatter_add(d_logits, rows, d_picked), None, None, None
