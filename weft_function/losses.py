"""The losses that a last vertex program computes: weighted sums over rows, with their derivatives."""

from collections.abc import Sequence

import numpy as np

from weft_function.operation import Array, Grads, Operation


class CrossEntropy(Operation):
    """Reads logits [N, C], classes [N] (-1: ignored) and the weight of each row [N]; returns the weighted sum."""

    num_inputs = 3

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, classes, counts = inputs
        self.rows = np.flatnonzero(classes >= 0)
        chosen = logits[self.rows] - logits[self.rows].max(1, keepdims=True)
        exp = np.exp(chosen)
        total = exp.sum(1, keepdims=True)
        self.classes, self.counts, self.shape = classes[self.rows], counts[self.rows], logits.shape
        self.softmax = exp / total
        each = np.log(total[:, 0]) - chosen[np.arange(len(chosen)), self.classes]
        return np.asarray((each * self.counts).sum(), logits.dtype)

    def backward(self, grad: Array) -> Grads:
        d_chosen = self.softmax
        d_chosen[np.arange(len(d_chosen)), self.classes] -= 1
        d_logits = np.zeros(self.shape, d_chosen.dtype)
        d_logits[self.rows] = d_chosen * (self.counts * grad)[:, None]
        return [d_logits, None, None], []


class BinaryCrossEntropy(Operation):
    """Reads logits, targets (-1: unknown) and the weight of each entry, all [N, C]; returns the weighted sum.

    The weight of a positive entry includes the weight of its class.
    """

    num_inputs = 3

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, targets, self.counts = inputs
        known = targets >= 0
        self.counts = self.counts * known
        target = np.maximum(targets, 0).astype(logits.dtype)
        self.slope = 1 / (1 + np.exp(-logits)) - target
        each = np.maximum(logits, 0) - logits * target + np.log1p(np.exp(-np.abs(logits)))
        return np.asarray((each * self.counts).sum(), logits.dtype)

    def backward(self, grad: Array) -> Grads:
        return [self.slope * self.counts * grad, None, None], []
