"""Programs: short lists of named operations on rows, which are sent as data and checked before they run.

    Program(inputs=("gathered",), outputs=("out",), ops=(Op("linear", ("gathered",), "h", ("layers.0.weight",)), ...))

Each operation reads inputs of the program or outputs of earlier operations, and has one output. A program gives the
same result wherever it runs; `backward` differentiates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_function.operation import Operation
from weft_function.ops import OPS

MAX_OPS = 64
MAX_NAME_LENGTH = 80


class BadProgram(ValueError):
    """A program that is not well formed."""


@dataclass(frozen=True)
class Op:
    name: str
    inputs: tuple[str, ...]
    output: str
    weights: tuple[str, ...] = ()
    settings: tuple[tuple[str, float], ...] = ()
    key: str | None = None  # the name of the constant that seeds its random bits
    call: str | None = None  # package.module:function, if the operation is "call"


@dataclass(frozen=True)
class Program:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    constants: tuple[str, ...] = ()  # inputs without a gradient

    def __post_init__(self) -> None:
        known = set(self.inputs)
        if len(self.ops) > MAX_OPS:
            raise BadProgram(f"a program has at most {MAX_OPS} operations, not {len(self.ops)}")
        for op in self.ops:
            if op.name not in OPS:
                raise BadProgram(f"there is no operation '{op.name}'")
            OPS[op.name].check(len(op.inputs), len(op.weights), dict(op.settings), op.key)
            missing = [name for name in op.inputs if name not in known]
            if missing:
                raise BadProgram(f"operation '{op.name}' reads '{missing[0]}', which no earlier operation computes")
            if op.output in known:
                raise BadProgram(f"two operations compute '{op.output}'")
            known.add(op.output)
        missing = [name for name in self.outputs if name not in known]
        if missing:
            raise BadProgram(f"no operation computes the output '{missing[0]}'")

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of all weights, each once, in the order of use."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.weights))

    def to_json(self) -> dict[str, Any]:
        ops = [
            [
                op.name,
                list(op.inputs),
                op.output,
                list(op.weights),
                [list(pair) for pair in op.settings],
                op.key,
                op.call,
            ]
            for op in self.ops
        ]
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "ops": ops,
            "constants": list(self.constants),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Program":
        """A program from untrusted data; raises BadProgram."""
        try:
            ops = tuple(
                Op(
                    _name(name), _names(inputs), _name(output), _names(weights),
                    tuple((_name(setting), float(value)) for setting, value in settings),
                    None if key is None else _name(key), None if call is None else _name(call),
                )
                for name, inputs, output, weights, settings, key, call in data["ops"]
            )  # fmt: skip
            return cls(_names(data["inputs"]), _names(data["outputs"]), ops, _names(data["constants"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadProgram(str(error)) from None


def _name(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME_LENGTH:
        raise BadProgram(f"a name is a string of 1 to {MAX_NAME_LENGTH} characters")
    return text


def _names(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list | tuple) or len(texts) > MAX_OPS:
        raise BadProgram(f"names must be a list of at most {MAX_OPS} strings")
    return tuple(_name(text) for text in texts)


Arrays = Mapping[str, np.ndarray]


def forward(program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int]) -> dict[str, np.ndarray]:
    values, _ = _run(program, inputs, weights, constants)
    return {name: values[name] for name in program.outputs}


def backward(
    program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int], grads: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The outputs, and the gradients of non-constant inputs and of all weights, given those of (some) outputs."""
    values, operations = _run(program, inputs, weights, constants)
    d_values: dict[str, np.ndarray] = {name: grad for name, grad in grads.items() if name in values}
    d_weights: dict[str, np.ndarray] = {}
    for op, operation in zip(reversed(program.ops), reversed(operations), strict=True):
        grad = d_values.pop(op.output, None)
        if grad is None:
            continue
        input_grads, weight_grads = operation.backward(grad)
        for name, part in zip(op.inputs, input_grads, strict=True):
            if part is not None:
                d_values[name] = part if name not in d_values else d_values[name] + part
        for name, part in zip(op.weights, weight_grads, strict=True):
            d_weights[name] = part if name not in d_weights else d_weights[name] + part
    for name in program.weights:  # a weight that no gradient reaches
        d_weights.setdefault(name, np.zeros_like(weights[name]))
    outputs = {name: values[name] for name in program.outputs}
    differentiated = [name for name in program.inputs if name not in program.constants]
    return outputs, {name: d_values[name] for name in differentiated if name in d_values}, d_weights


def _run(
    program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], list[Operation]]:
    values: dict[str, np.ndarray] = dict(inputs)
    operations: list[Operation] = []
    varying = set(program.inputs) - set(program.constants)  # values that depend on more than constants
    for op in program.ops:
        needs_grad = tuple(name in varying for name in op.inputs)
        key = None if op.key is None else constants[op.key]
        operation = OPS[op.name](dict(op.settings), key, op.call, needs_grad)
        if op.weights or any(needs_grad):
            varying.add(op.output)
        values[op.output] = operation.forward(
            [values[name] for name in op.inputs], [weights[name] for name in op.weights]
        )
        operations.append(operation)
    return values, operations
