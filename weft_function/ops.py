"""The operations that programs are made of, by name, each with its derivative, in numpy.

An operation object belongs to one run of one program: `forward` keeps what `backward` needs.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from weft_function.losses import BinaryCrossEntropy, CrossEntropy
from weft_function.operation import Array, Grads, Operation
from weft_function.rng import keep_rows
from weft_function.user_function import UserFunction


class Linear(Operation):
    """x [N, in] @ weight [out, in]^T."""

    num_weights = 1

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        (self.x,), (self.weight,) = inputs, weights
        return self.x @ self.weight.T

    def backward(self, grad: Array) -> Grads:
        return [grad @ self.weight if self.needs_grad[0] else None], [grad.T @ self.x]


class Bias(Operation):
    num_weights = 1

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        return inputs[0] + weights[0]

    def backward(self, grad: Array) -> Grads:
        return [grad], [grad.sum(0)]


class Identity(Operation):
    """Gives a value another name."""

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        return inputs[0]

    def backward(self, grad: Array) -> Grads:
        return [grad], []


class Add(Operation):
    num_inputs = 2

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        return inputs[0] + inputs[1]

    def backward(self, grad: Array) -> Grads:
        return [grad, grad], []


class Merge(Operation):
    """Reads the ids of N rows, blocks of rows [n, D], and after each block the places [n] of its rows: [N, D].

    Each place occurs once.
    """

    num_inputs = -1

    @classmethod
    def check(cls, inputs: int, weights: int, settings: Mapping[str, float], key: str | None) -> None:
        super().check(inputs, weights, settings, key)
        if inputs < 3 or inputs % 2 == 0:
            raise ValueError(f"operation {cls.__name__} reads ids, and blocks with their places, not {inputs} values")

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        (ids, first, *_), blocks, self.places = inputs, inputs[1::2], inputs[2::2]
        out = np.zeros((len(ids), first.shape[1]), first.dtype)
        for rows, places in zip(blocks, self.places, strict=True):
            out[places] = rows
        return out

    def backward(self, grad: Array) -> Grads:
        return [None, *(part for places in self.places for part in (grad[places], None))], []


class Relu(Operation):
    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.out = np.maximum(inputs[0], 0)
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * (self.out > 0)], []


class Elu(Operation):
    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.out: Array = np.where(inputs[0] > 0, inputs[0], np.expm1(np.minimum(inputs[0], 0)))
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * np.where(self.out > 0, 1, self.out + 1).astype(grad.dtype)], []


class LeakyRelu(Operation):
    settings = ("slope",)

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.factor = np.where(inputs[0] > 0, 1, self.set["slope"]).astype(inputs[0].dtype)
        return inputs[0] * self.factor

    def backward(self, grad: Array) -> Grads:
        return [grad * self.factor], []


class Dropout(Operation):
    """Reads rows [N, D] and their global ids [N]; a hash of (key, id, column) decides which entries are kept."""

    num_inputs = 2
    settings = ("p",)
    keyed = True

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        x, ids = inputs
        assert self.key is not None
        kept = keep_rows(ids, x.shape[1], self.set["p"], self.key)
        self.factor = kept * x.dtype.type(1.0 / (1.0 - self.set["p"]))
        return x * self.factor

    def backward(self, grad: Array) -> Grads:
        return [grad * self.factor, None], []


class LayerNorm(Operation):
    num_weights = 2  # gain and shift
    settings = ("eps",)

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        (x,), (self.gain, shift) = inputs, weights
        centred = x - x.mean(1, keepdims=True)
        self.scale = 1 / np.sqrt((centred * centred).mean(1, keepdims=True) + x.dtype.type(self.set["eps"]))
        self.normal = centred * self.scale
        return self.normal * self.gain + shift

    def backward(self, grad: Array) -> Grads:
        inner = grad * self.gain
        mean = inner.mean(1, keepdims=True)
        along = (inner * self.normal).mean(1, keepdims=True)
        return [(inner - mean - self.normal * along) * self.scale], [(grad * self.normal).sum(0), grad.sum(0)]


class HeadDot(Operation):
    """The dot product of each head's columns of rows [N, H*D] with a vector per head [H, D]: [N, H]."""

    num_weights = 1

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        (self.rows,), (self.att,) = inputs, weights
        heads, width = self.att.shape
        return np.einsum("nhd,hd->nh", self.rows.reshape(-1, heads, width), self.att)

    def backward(self, grad: Array) -> Grads:
        heads, width = self.att.shape
        d_rows = (grad[:, :, None] * self.att).reshape(self.rows.shape)
        return [d_rows], [np.einsum("nhd,nh->hd", self.rows.reshape(-1, heads, width), grad)]


class HeadMean(Operation):
    """The mean over heads: [N, H*D] to [N, D]."""

    settings = ("heads",)

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        heads = int(self.set["heads"])
        return inputs[0].reshape(len(inputs[0]), heads, inputs[0].shape[1] // heads).mean(1)

    def backward(self, grad: Array) -> Grads:
        heads = int(self.set["heads"])
        return [np.tile(grad / grad.dtype.type(heads), (1, heads))], []


class EdgeSoftmax(Operation):
    """Reads the logits of edges, and for each edge the maximum and the sum of its row's softmax: exp(l - max) / sum.

    Maximum and sum depend on the logits, too. Whoever gives the gradient accounts for that: the gradient of each edge's
    attention must already have the row's weighted mean of these gradients subtracted.
    """

    num_inputs = 3

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, row_max, row_sum = inputs
        self.out = np.exp(logits - row_max) / row_sum
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * self.out, None, None], []


OPS: dict[str, type[Operation]] = {
    "linear": Linear,
    "bias": Bias,
    "identity": Identity,
    "add": Add,
    "merge": Merge,
    "relu": Relu,
    "elu": Elu,
    "leaky_relu": LeakyRelu,
    "dropout": Dropout,
    "layer_norm": LayerNorm,
    "head_dot": HeadDot,
    "head_mean": HeadMean,
    "edge_softmax": EdgeSoftmax,
    "cross_entropy": CrossEntropy,
    "binary_cross_entropy": BinaryCrossEntropy,
    "call": UserFunction,
}
