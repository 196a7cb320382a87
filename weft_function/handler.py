"""The one function that every executor runs: a task in, its outputs and gradients out; nothing is remembered."""

import time

import numpy as np

from weft_function.program import backward, forward
from weft_function.request import Answer, Request

LOSS = "loss"


def handle(request: Request, worker: str) -> Answer:
    """Does a task. Pure: the same request gives the same bits, wherever and however often it runs."""
    started = time.perf_counter()
    program, weights, constants = request.program, request.weights, request.constants
    inputs = {name: request.tensors[name] for name in program.inputs}
    if request.mode == "forward":
        out = forward(program, inputs, weights, constants)
    else:
        grads = {name[2:]: array for name, array in request.tensors.items() if name.startswith("d:")}
        if LOSS in program.outputs:
            grads[LOSS] = np.ones((), inputs[program.inputs[0]].dtype)
        outputs, d_inputs, d_weights = backward(program, inputs, weights, constants, grads)
        out = outputs if request.mode == "both" else {}
        out |= {f"d:{name}": array for name, array in (d_inputs | d_weights).items()}
    return Answer(out, time.perf_counter() - started, worker)
