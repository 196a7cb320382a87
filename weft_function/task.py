"""Tensor tasks: the request that a graph server makes, and the response of the function that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from weft_function.program import Program

Arrays = Mapping[str, np.ndarray]


class TaskKind(StrEnum):
    """The nine kinds of tasks: four of a layer's forward pass, their four adjoints, and the weight update."""

    GATHER = "gather"
    APPLY_VERTEX = "apply_vertex"
    SCATTER = "scatter"
    APPLY_EDGE = "apply_edge"
    GATHER_BACK = "gather_back"
    APPLY_VERTEX_BACK = "apply_vertex_back"
    SCATTER_BACK = "scatter_back"
    APPLY_EDGE_BACK = "apply_edge_back"
    UPDATE = "update"


VERTEX_KINDS = (TaskKind.APPLY_VERTEX, TaskKind.APPLY_VERTEX_BACK)
EDGE_KINDS = (TaskKind.APPLY_EDGE, TaskKind.APPLY_EDGE_BACK)
TENSOR_KINDS = (*VERTEX_KINDS, *EDGE_KINDS)
Mode = Literal["forward", "backward", "both"]


class TaskId(NamedTuple):
    """Identifies a task in its run. All attempts at a task share its id."""

    run: str
    epoch: int
    server: int
    interval: int
    stage: int
    kind: TaskKind


@dataclass(frozen=True)
class Request:
    """One tensor task.

    `mode`: "forward" returns the program's outputs. "backward" recomputes them and returns the gradients of inputs and
    weights, given those of the outputs (in `tensors`, under `gradient_name`). "both" returns outputs and gradients. An
    output named "loss" has the gradient 1.
    """

    id: TaskId
    mode: Mode
    program: Program
    version: int  # of the weights
    weights: Arrays = field(repr=False)  # not sent to a worker that has this version of them
    tensors: Arrays = field(repr=False)
    constants: Mapping[str, int] = field(default_factory=dict)  # dropout keys of the epoch

    @property
    def weights_key(self) -> tuple[str, int, tuple[str, ...]]:
        """Identifies the weights in a worker's cache."""
        return self.id.run, self.version, tuple(sorted(self.weights))


class Response(NamedTuple):
    tensors: dict[str, np.ndarray]  # outputs, and gradients under `gradient_name`
    seconds: float  # of computation
    worker: str  # the name of the worker that ran the task


GRADIENT_PREFIX = "d:"


def gradient_name(name: str) -> str:
    """The name under which the gradient of an input, output or weight travels."""
    return GRADIENT_PREFIX + name
