"""The expected form of a task's response: names, dtypes and shapes, known in advance. Other responses are refused."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft_function.handler import handle
from weft_function.memory import ALIGNMENT
from weft_function.task import Request, gradient_name
from weft_function.wire import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, MAX_TENSORS, Malformed, Message

Form = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and shape
OVERHEAD_BYTES = MAX_HEADER_BYTES + MAX_TENSORS * ALIGNMENT  # the header, and the padding of tensors
MAX_SECONDS = 1e9
CACHED_FORMS = 256  # of different tasks


@dataclass(frozen=True)
class ExpectedResponse:
    tensors: Mapping[str, Form | None]  # None: the form is not known
    optional: frozenset[str] = frozenset()  # tensors that may be missing

    @property
    def max_bytes(self) -> int:
        """An upper bound of the size of the response message."""
        if self.optional or None in self.tensors.values():
            return MAX_MESSAGE_BYTES
        forms = [form for form in self.tensors.values() if form is not None]
        return OVERHEAD_BYTES + sum(dtype.itemsize * math.prod(shape) for dtype, shape in forms)

    def check(self, message: Message) -> float:
        """The seconds of computation that the response reports; raises Malformed if its form is not as expected."""
        seconds = message.fields.get("seconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < MAX_SECONDS:
            raise Malformed("the response does not report its seconds")
        if not set(self.tensors) <= set(message.tensors) <= set(self.tensors) | self.optional:
            raise Malformed(f"the response contains {sorted(message.tensors)} instead of {sorted(self.tensors)}")
        for name, form in self.tensors.items():
            found = message.tensors[name]
            if form is not None and (found.dtype, found.shape) != form:
                raise Malformed(f"'{name}' is {found.dtype} {found.shape} instead of {form[0]} {form[1]}")
        return float(seconds)


class ResponseForms:
    """Predicts responses: runs each task on one row of zeros, once for all tasks of equal form."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[Any, ...], dict[str, Form] | None] = OrderedDict()

    def expected(self, request: Request) -> ExpectedResponse:
        rows = len(request.tensors[request.program.inputs[0]])
        weights = {gradient_name(name): (weight.dtype, weight.shape) for name, weight in request.weights.items()}
        one_row = self._on_one_row(request)
        if one_row is None:
            outputs = request.program.outputs if request.mode != "backward" else ()
            differentiates = request.mode != "forward"
            optional = frozenset(gradient_name(name) for name in request.program.inputs if differentiates)
            return ExpectedResponse(dict.fromkeys(outputs) | (weights if differentiates else {}), optional)
        return ExpectedResponse({
            name: weights.get(name, (dtype, (rows, *shape[1:]) if shape else ()))
            for name, (dtype, shape) in one_row.items()
        })  # fmt: skip

    def _on_one_row(self, request: Request) -> dict[str, Form] | None:
        """The form of the response to one row; None if a user's own function fails on zeros."""
        tensors = {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in request.tensors.items()}
        weights = {name: (weight.dtype, weight.shape) for name, weight in request.weights.items()}
        key = (request.program, request.mode, tuple(tensors.items()), tuple(weights.items()))
        if key not in self._cache:
            small = replace(
                request,
                tensors={name: np.zeros((1, *shape), dtype) for name, (dtype, shape) in tensors.items()},
                weights={name: np.zeros(shape, dtype) for name, (dtype, shape) in weights.items()},
            )
            self._cache[key] = _response_form(small)
            while len(self._cache) > CACHED_FORMS:
                self._cache.popitem(last=False)
        return self._cache[key]


def _response_form(request: Request) -> dict[str, Form] | None:
    try:
        with np.errstate(all="ignore"):
            response = handle(request, "inline")
    except Exception:
        if any(op.call is not None for op in request.program.ops):
            return None
        raise
    return {name: (tensor.dtype, tensor.shape) for name, tensor in response.tensors.items()}
