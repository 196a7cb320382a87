"""What a function computes: a short list of named operations on rows, sent as data and checked before it runs.

    Program(inputs=("gathered",), outputs=("out",), ops=(Op("linear", ("gathered",), "h", ("layers.0.weight",)), ...))

Each operation reads values that inputs or earlier operations have made, and makes one. What a program means is the
same wherever it runs; `backward` differentiates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_function.ops import OPS, Operation

MOST_OPS = 64
MOST_NAME = 80


class BadProgram(ValueError):
    """A program that cannot run, and why."""


@dataclass(frozen=True)
class Op:
    name: str
    reads: tuple[str, ...]
    makes: str
    weights: tuple[str, ...] = ()
    settings: tuple[tuple[str, float], ...] = ()
    key: str | None = None  # the constant that keys its randomness
    call: str | None = None  # package.module:Class of a user's own, where the operation is "call"


@dataclass(frozen=True)
class Program:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    constants: tuple[str, ...] = ()  # inputs that no gradient is wanted of

    def __post_init__(self) -> None:
        made = set(self.inputs)
        if len(self.ops) > MOST_OPS:
            raise BadProgram(f"a program has {MOST_OPS} operations at most, not {len(self.ops)}")
        for op in self.ops:
            if op.name not in OPS:
                raise BadProgram(f"there is no operation '{op.name}'")
            OPS[op.name].check(len(op.reads), len(op.weights), dict(op.settings), op.key)
            missing = [name for name in op.reads if name not in made]
            if missing:
                raise BadProgram(f"operation '{op.name}' reads '{missing[0]}', which nothing before it makes")
            if op.makes in made:
                raise BadProgram(f"'{op.makes}' is made twice")
            made.add(op.makes)
        missing = [name for name in self.outputs if name not in made]
        if missing:
            raise BadProgram(f"nothing makes the output '{missing[0]}'")

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of all weights, each once, in the order of use."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.weights))

    def to_json(self) -> dict[str, Any]:
        ops = [
            [op.name, list(op.reads), op.makes, list(op.weights), [list(pair) for pair in op.settings], op.key, op.call]
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
        """A program from data that anybody may have sent."""
        try:
            ops = tuple(
                Op(
                    _name(name), _names(reads), _name(makes), _names(weights),
                    tuple((_name(setting), float(value)) for setting, value in settings),
                    None if key is None else _name(key), None if call is None else _name(call),
                )
                for name, reads, makes, weights, settings, key, call in data["ops"]
            )  # fmt: skip
            return cls(_names(data["inputs"]), _names(data["outputs"]), ops, _names(data["constants"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadProgram(str(error)) from None


def _name(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_NAME:
        raise BadProgram(f"a name is a text of 1 to {MOST_NAME} characters")
    return text


def _names(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list | tuple) or len(texts) > MOST_OPS:
        raise BadProgram("names come in a short list")
    return tuple(_name(text) for text in texts)


Arrays = Mapping[str, np.ndarray]


def forward(program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int]) -> dict[str, np.ndarray]:
    values, _ = _run(program, inputs, weights, constants)
    return {name: values[name] for name in program.outputs}


def backward(
    program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int], grads: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs, and gradients of the inputs that have any and of all weights, given those of (some) outputs."""
    values, made = _run(program, inputs, weights, constants)
    d_values: dict[str, np.ndarray] = {name: grad for name, grad in grads.items() if name in values}
    d_weights: dict[str, np.ndarray] = {}
    for op, operation in zip(reversed(program.ops), reversed(made), strict=True):
        grad = d_values.pop(op.makes, None)
        if grad is None:
            continue
        d_reads, d_used = operation.backward(grad)
        for name, part in zip(op.reads, d_reads, strict=True):
            if part is not None:
                d_values[name] = part if name not in d_values else d_values[name] + part
        for name, part in zip(op.weights, d_used, strict=True):
            d_weights[name] = part if name not in d_weights else d_weights[name] + part
    for name in program.weights:  # a weight that no gradient reaches
        d_weights.setdefault(name, np.zeros_like(weights[name]))
    outputs = {name: values[name] for name in program.outputs}
    wanted = [name for name in program.inputs if name not in program.constants]
    return outputs, {name: d_values[name] for name in wanted if name in d_values}, d_weights


def _run(
    program: Program, inputs: Arrays, weights: Arrays, constants: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], list[Operation]]:
    values: dict[str, np.ndarray] = dict(inputs)
    made: list[Operation] = []
    moving = set(program.inputs) - set(program.constants)  # values that depend on more than constants
    for op in program.ops:
        needs = tuple(name in moving for name in op.reads)
        operation = OPS[op.name](dict(op.settings), None if op.key is None else constants[op.key], op.call, needs)
        if op.weights or any(needs):
            moving.add(op.makes)
        values[op.makes] = operation.forward(
            [values[name] for name in op.reads], [weights[name] for name in op.weights]
        )
        made.append(operation)
    return values, made
