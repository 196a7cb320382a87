"""Tensor tasks as messages: a request's header fields and tensors, and back."""

from collections.abc import Mapping

import numpy as np

from weft_function.program import Program
from weft_function.task import Arrays, Request, TaskId, TaskKind
from weft_function.wire import Message

WEIGHT_PREFIX = "w:"


def encode_request(request: Request, attempt: int, with_weights: bool = True) -> Message:
    """A "task" message. `attempt` is a number that the response must repeat."""
    fields = {
        "attempt": attempt,
        "id": list(request.id),
        "mode": request.mode,
        "program": request.program.to_json(),
        "version": request.version,
        "weights": sorted(request.weights),
        "constants": dict(request.constants),
    }
    tensors = dict(request.tensors)
    if with_weights:
        tensors |= {WEIGHT_PREFIX + name: weight for name, weight in request.weights.items()}
    return Message("task", fields, tensors)


def weights_in(message: Message) -> dict[str, np.ndarray]:
    """The weights that a task message contains, by name."""
    sent = message.tensors.items()
    return {name.removeprefix(WEIGHT_PREFIX): tensor for name, tensor in sent if name.startswith(WEIGHT_PREFIX)}


def weights_key(message: Message) -> tuple[str, int, tuple[str, ...]]:
    """Identifies the weights that a task needs, as `Request.weights_key` does."""
    fields = message.fields
    return fields["id"][0], fields["version"], tuple(fields["weights"])


def decode_request(message: Message, weights: Arrays) -> Request:
    """The request of a task message, with weights from that message or from a cache."""
    fields = message.fields
    run, epoch, server, interval, stage, kind = fields["id"]
    constants: Mapping[str, int] = fields["constants"]
    return Request(
        TaskId(run, epoch, server, interval, stage, TaskKind(kind)),
        fields["mode"],
        Program.from_json(fields["program"]),
        fields["version"],
        weights,
        {name: tensor for name, tensor in message.tensors.items() if not name.startswith(WEIGHT_PREFIX)},
        {name: int(value) for name, value in constants.items()},
    )
