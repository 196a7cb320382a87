"""A user's own function of rows as an operation: imported by name, differentiated by torch."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from weft_function.operation import Array, Grads, Operation
from weft_function.own import import_own


class UserFunction(Operation):
    """Calls `package.module:function` with torch tensors: (*inputs, *weights).

    This needs torch and the user's package, and a worker that was told to trust the module.
    """

    num_inputs = num_weights = -1
    trusted: ClassVar[tuple[str, ...]] = ()  # modules that this process may call

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        assert self.call is not None
        module, _, name = self.call.partition(":")
        if module not in self.trusted:
            raise PermissionError(
                f"this worker was not told to run functions of {module}: start it with --trust {module}"
            )
        import torch

        function: Any = import_own(module)
        for part in name.split("."):
            function = getattr(function, part)
        with torch.enable_grad():
            self.inputs = [torch.from_numpy(np.ascontiguousarray(rows)) for rows in inputs]
            self.used = [torch.from_numpy(np.ascontiguousarray(weight)).requires_grad_() for weight in weights]
            for rows, needed in zip(self.inputs, self.needs_grad, strict=True):
                rows.requires_grad_(needed and rows.is_floating_point())
            self.out = function(*self.inputs, *self.used)
        out: np.ndarray = self.out.detach().numpy()
        return out

    def backward(self, grad: Array) -> Grads:
        import torch

        wanted = [rows for rows in self.inputs if rows.requires_grad] + self.used
        found = torch.autograd.grad(self.out, wanted, torch.from_numpy(np.ascontiguousarray(grad)), allow_unused=True)
        grads = iter(found)
        d_inputs = [_array(next(grads), rows) if rows.requires_grad else None for rows in self.inputs]
        return d_inputs, [_array(next(grads), weight) for weight in self.used]


def _array(grad: Any, like: Any) -> Array:
    array: np.ndarray = np.zeros(tuple(like.shape), like.detach().numpy().dtype) if grad is None else grad.numpy()
    return array
