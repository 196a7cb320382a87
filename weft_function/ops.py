"""The operations that programs are made of, each with its derivative, in numpy.

An operation is made for one run of one program: `forward` keeps what `backward` needs. Randomness is a function of
(key, global id of the row, column): the same bits as weft.kernels draws, wherever a row is computed.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

Array = Any  # numpy.ndarray: its operators are untyped
Grads = tuple[list[Array | None], list[Array]]  # of what it reads, of its weights


class Operation:
    """Rows in, rows out."""

    reads: ClassVar[int] = 1
    weights: ClassVar[int] = 0
    settings: ClassVar[tuple[str, ...]] = ()
    keyed: ClassVar[bool] = False

    def __init__(
        self, settings: Mapping[str, float], key: int | None, call: str | None, needs: tuple[bool, ...]
    ) -> None:
        """`needs`: of which of the values that it reads a gradient is wanted."""
        self.set, self.key, self.call, self.needs = settings, key, call, needs

    @classmethod
    def check(cls, reads: int, weights: int, settings: Mapping[str, float], key: str | None) -> None:
        name = cls.__name__
        if cls.reads >= 0 and reads != cls.reads:
            raise ValueError(f"operation {name} reads {cls.reads} values, not {reads}")
        if cls.weights >= 0 and weights != cls.weights:
            raise ValueError(f"operation {name} has {cls.weights} weights, not {weights}")
        if set(settings) != set(cls.settings):
            raise ValueError(f"operation {name} has the settings {sorted(cls.settings)}, not {sorted(settings)}")
        if (key is not None) != cls.keyed:
            raise ValueError(f"operation {name} has {'a' if cls.keyed else 'no'} key")

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        raise NotImplementedError

    def backward(self, grad: Array) -> Grads:
        raise NotImplementedError


class Linear(Operation):
    """x [N, in] @ weight [out, in]^T."""

    weights = 1

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        (self.x,), (self.weight,) = reads, weights
        return self.x @ self.weight.T

    def backward(self, grad: Array) -> Grads:
        return [grad @ self.weight if self.needs[0] else None], [grad.T @ self.x]


class Bias(Operation):
    weights = 1

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        return reads[0] + weights[0]

    def backward(self, grad: Array) -> Grads:
        return [grad], [grad.sum(0)]


class Same(Operation):
    """The same rows under another name."""

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        return reads[0]

    def backward(self, grad: Array) -> Grads:
        return [grad], []


class Add(Operation):
    reads = 2

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        return reads[0] + reads[1]

    def backward(self, grad: Array) -> Grads:
        return [grad, grad], []


class Relu(Operation):
    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.out = np.maximum(reads[0], 0)
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * (self.out > 0)], []


class Elu(Operation):
    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.out: Array = np.where(reads[0] > 0, reads[0], np.expm1(np.minimum(reads[0], 0)))
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * np.where(self.out > 0, 1, self.out + 1).astype(grad.dtype)], []


class LeakyRelu(Operation):
    settings = ("slope",)

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        self.factor = np.where(reads[0] > 0, 1, self.set["slope"]).astype(reads[0].dtype)
        return reads[0] * self.factor

    def backward(self, grad: Array) -> Grads:
        return [grad * self.factor], []


class Dropout(Operation):
    """Reads rows [N, D] and their global ids [N]; keeps what a hash says."""

    reads = 2
    settings = ("p",)
    keyed = True

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        x, ids = reads
        assert self.key is not None
        keep = keep_rows(ids, x.shape[1], self.set["p"], self.key)
        self.factor = keep * x.dtype.type(1.0 / (1.0 - self.set["p"]))
        return x * self.factor

    def backward(self, grad: Array) -> Grads:
        return [grad * self.factor, None], []


class LayerNorm(Operation):
    weights = 2  # gain, shift
    settings = ("eps",)

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        (x,), (self.gain, shift) = reads, weights
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
    """Rows [N, H*D] with a vector [H, D] per head: [N, H]."""

    weights = 1

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        (self.rows,), (self.att,) = reads, weights
        heads, width = self.att.shape
        return np.einsum("nhd,hd->nh", self.rows.reshape(-1, heads, width), self.att)

    def backward(self, grad: Array) -> Grads:
        heads, width = self.att.shape
        d_rows = (grad[:, :, None] * self.att).reshape(self.rows.shape)
        return [d_rows], [np.einsum("nhd,nh->hd", self.rows.reshape(-1, heads, width), grad)]


class HeadMean(Operation):
    settings = ("heads",)

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        heads = int(self.set["heads"])
        return reads[0].reshape(len(reads[0]), heads, reads[0].shape[1] // heads).mean(1)

    def backward(self, grad: Array) -> Grads:
        heads = int(self.set["heads"])
        return [np.tile(grad / grad.dtype.type(heads), (1, heads))], []


class Share(Operation):
    """Reads logits, and each edge's maximum and total of all logits of its row: exp(logit - most) / total.

    Most and total depend on logits, too: who gives the gradient takes it into account, by subtracting from that of each
    edge what the row's weighted mean of them is.
    """

    reads = 3

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, most, total = reads
        self.out = np.exp(logits - most) / total
        return self.out

    def backward(self, grad: Array) -> Grads:
        return [grad * self.out, None, None], []


class CrossEntropy(Operation):
    """Reads logits [N, C], classes [N] (-1: not counted) and what each row counts [N]; their weighted sum, a number."""

    reads = 3

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, classes, counts = reads
        self.rows = np.flatnonzero(classes >= 0)
        chosen = logits[self.rows] - logits[self.rows].max(1, keepdims=True)
        exp = np.exp(chosen)
        total = exp.sum(1, keepdims=True)
        self.classes, self.counts, self.shape = classes[self.rows], counts[self.rows], logits.shape
        self.share = exp / total
        each = np.log(total[:, 0]) - chosen[np.arange(len(chosen)), self.classes]
        return np.asarray((each * self.counts).sum(), logits.dtype)

    def backward(self, grad: Array) -> Grads:
        d_chosen = self.share
        d_chosen[np.arange(len(d_chosen)), self.classes] -= 1
        d_logits = np.zeros(self.shape, d_chosen.dtype)
        d_logits[self.rows] = d_chosen * (self.counts * grad)[:, None]
        return [d_logits, None, None], []


class BinaryCrossEntropy(Operation):
    """Reads logits, targets (-1: not known) and what each entry counts, all [N, C]; their weighted sum.

    `counts` of a positive entry holds its class's weight already.
    """

    reads = 3

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        logits, targets, self.counts = reads
        known = targets >= 0
        self.counts = self.counts * known
        target = np.maximum(targets, 0).astype(logits.dtype)
        self.slope = 1 / (1 + np.exp(-logits)) - target
        each = np.maximum(logits, 0) - logits * target + np.log1p(np.exp(-np.abs(logits)))
        return np.asarray((each * self.counts).sum(), logits.dtype)

    def backward(self, grad: Array) -> Grads:
        return [self.slope * self.counts * grad, None, None], []


class Call(Operation):
    """A user's own function on rows, by name: `package.module:function`, called with torch tensors, (*reads, *weights).

    Runs where torch and the user's package are installed and the worker was told to trust that package.
    """

    reads = weights = -1
    trusted: ClassVar[tuple[str, ...]] = ()

    def forward(self, reads: Sequence[Array], weights: Sequence[Array]) -> Array:
        import torch

        assert self.call is not None
        module, _, name = self.call.partition(":")
        if module not in self.trusted:
            raise PermissionError(
                f"this worker was not told to run functions of {module}: start it with --trust {module}"
            )
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        with torch.enable_grad():
            self.inputs = [torch.from_numpy(np.ascontiguousarray(rows)) for rows in reads]
            self.used = [torch.from_numpy(np.ascontiguousarray(weight)).requires_grad_() for weight in weights]
            for rows, needed in zip(self.inputs, self.needs, strict=True):
                rows.requires_grad_(needed and rows.is_floating_point())
            self.out = function(*self.inputs, *self.used)
        out: np.ndarray = self.out.detach().numpy()
        return out

    def backward(self, grad: Array) -> Grads:
        import torch

        wanted = [rows for rows in self.inputs if rows.requires_grad] + self.used
        found = torch.autograd.grad(self.out, wanted, torch.from_numpy(np.ascontiguousarray(grad)), allow_unused=True)
        grads = iter(found)
        d_reads = [_array(next(grads), rows) if rows.requires_grad else None for rows in self.inputs]
        return d_reads, [_array(next(grads), weight) for weight in self.used]


def _array(grad: Any, like: Any) -> Array:
    array: np.ndarray = np.zeros(tuple(like.shape), like.detach().numpy().dtype) if grad is None else grad.numpy()
    return array


OPS: dict[str, type[Operation]] = {
    "linear": Linear,
    "bias": Bias,
    "same": Same,
    "add": Add,
    "relu": Relu,
    "elu": Elu,
    "leaky_relu": LeakyRelu,
    "dropout": Dropout,
    "layer_norm": LayerNorm,
    "head_dot": HeadDot,
    "head_mean": HeadMean,
    "share": Share,
    "cross_entropy": CrossEntropy,
    "binary_cross_entropy": BinaryCrossEntropy,
    "call": Call,
}

_U = np.uint64
_GOLDEN = _U(0x9E3779B97F4A7C15)


def splitmix64(value: np.ndarray) -> Array:
    value = value + _GOLDEN
    value = (value ^ (value >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U(27))) * _U(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> _U(31))
    return mixed


def keep_rows(ids: np.ndarray, width: int, p: float, key: int) -> Array:
    """Which entries dropout keeps, bool [N, width]: as weft.kernels.dropout_rows does."""
    row = splitmix64(ids.astype(np.int64).view(np.uint64) * _GOLDEN + _U(key & 0xFFFFFFFFFFFFFFFF))
    low, high = row.astype(np.uint32), (row >> _U(32)).astype(np.uint32)
    v = low[:, None] + np.arange(width, dtype=np.uint32) * np.uint32(0x9E3779B9)
    v = (v ^ (v >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    v = (v ^ (v >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    v = v ^ (v >> np.uint32(16)) ^ high[:, None]
    keep: np.ndarray = v >= np.uint32(int(p * 2**32))
    return keep
