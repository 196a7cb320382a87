"""What a tensor task is: who asked for it, what it computes, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from weft_function.program import Program

Arrays = Mapping[str, np.ndarray]


class Kind(StrEnum):
    """The nine kinds of tasks: four of a layer's forward pass, their adjoints, and the update of the weights."""

    GATHER = "gather"
    APPLY_VERTEX = "apply_vertex"
    SCATTER = "scatter"
    APPLY_EDGE = "apply_edge"
    GATHER_BACK = "gather_back"
    APPLY_VERTEX_BACK = "apply_vertex_back"
    SCATTER_BACK = "scatter_back"
    APPLY_EDGE_BACK = "apply_edge_back"
    UPDATE = "update"


TENSOR_KINDS = (Kind.APPLY_VERTEX, Kind.APPLY_EDGE, Kind.APPLY_VERTEX_BACK, Kind.APPLY_EDGE_BACK)
Mode = Literal["forward", "backward", "both"]


class TaskId(NamedTuple):
    """A task's name in its run; the same however often it is tried."""

    run: str
    epoch: int
    server: int
    interval: int
    stage: int
    kind: Kind


@dataclass(frozen=True)
class Request:
    """One tensor task.

    `mode`: "forward" returns the program's outputs; "backward" runs it again and returns the gradients of inputs and
    weights, given those of the outputs (in `tensors`, named "d:OUTPUT"); "both" returns all of it. An output "loss" is
    what is differentiated where it exists: its gradient is 1.
    """

    id: TaskId
    mode: Mode
    program: Program
    version: int  # of the weights
    weights: Arrays = field(repr=False)  # a worker that has this stage's of this version already need not be sent them
    tensors: Arrays = field(repr=False)
    constants: Mapping[str, int] = field(default_factory=dict)  # keys of dropout, which change with the epoch

    @property
    def weights_key(self) -> tuple[str, int, tuple[str, ...]]:
        """What the weights are known by at a worker."""
        return self.id.run, self.version, tuple(sorted(self.weights))


class Answer(NamedTuple):
    tensors: dict[str, np.ndarray]  # outputs by name, gradients as "d:NAME"
    seconds: float  # that the function worked
    worker: str  # who worked
