"""What an interval keeps while it goes through one epoch."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from weft.serverless.edge_softmax import SoftmaxState


@dataclass
class IntervalState:
    """Values by stage, unless it says otherwise. Most are removed when the backward pass has used them."""

    version: int = 0  # of the weights, for the whole epoch
    outputs: dict[str, np.ndarray] = field(default_factory=dict)  # of the last step: inputs of the next one, by name
    inputs: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # of vertex programs
    gathered: dict[int, Tensor] = field(default_factory=dict)  # where edges have a function
    softmax: dict[int, SoftmaxState] = field(default_factory=dict)
    targets: dict[int, Tensor] = field(default_factory=dict)  # terms of own rows that the edge function reads
    vertex_gradients: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # of weights of vertex programs
    edge_gradients: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # of weights of edge functions
    loss: float = 0.0
