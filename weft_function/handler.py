"""The one function that every executor runs: a request in, outputs and gradients out. It keeps no state."""

import time

import numpy as np

from weft_function.memory import aligned
from weft_function.program import backward, forward
from weft_function.task import GRADIENT_PREFIX, Request, Response, gradient_name

LOSS = "loss"


def handle(request: Request, worker: str) -> Response:
    """Runs a task. Equal requests give equal bits on every worker and in every attempt.

    Operands are aligned first, since the bits of a product can depend on their addresses.
    """
    started = time.perf_counter()
    program, constants = request.program, request.constants
    weights = {name: aligned(weight) for name, weight in request.weights.items()}
    inputs = {name: aligned(request.tensors[name]) for name in program.inputs}
    if request.mode == "forward":
        out = forward(program, inputs, weights, constants)
    else:
        grads = {
            name.removeprefix(GRADIENT_PREFIX): aligned(array)
            for name, array in request.tensors.items()
            if name.startswith(GRADIENT_PREFIX)
        }
        if LOSS in program.outputs:
            grads[LOSS] = np.ones((), inputs[program.inputs[0]].dtype)
        outputs, d_inputs, d_weights = backward(program, inputs, weights, constants, grads)
        out = outputs if request.mode == "both" else {}
        out |= {gradient_name(name): array for name, array in (d_inputs | d_weights).items()}
    return Response(out, time.perf_counter() - started, worker)
