"""Adam, AdamW and SGD: the arithmetic of torch's, bit for bit, without torch's compiler.

torch.optim imports torch._dynamo, and with it sympy, when the first of its optimisers is made. Nothing here is
compiled, and that import costs every worker about a second of start-up and 70 MB for as long as it runs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class _Optimiser(torch.optim.Optimizer):
    """What the three have in common; those methods of the base class that import the compiler are replaced."""

    def __init__(self, groups: Iterable[dict[str, Any]], **defaults: float) -> None:
        super().__init__(groups, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.detach_().zero_()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise TypeError("this optimiser takes no closure: compute the loss and its gradients before the step")
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters, [parameter.grad for parameter in parameters])

    def _update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Moves these parameters of a group, all of which have gradients."""
        raise NotImplementedError


class Adam(_Optimiser):
    """Weight decay is part of the gradient (`decoupled=False`), or shrinks the weights beside it (AdamW)."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, decoupled: bool = False) -> None:
        super().__init__(groups, lr=lr, weight_decay=0.0, beta1=0.9, beta2=0.999, eps=1e-8)
        self.decoupled = decoupled

    def _update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        states = [self._state_of(parameter) for parameter in parameters]
        steps, means, squares = ([state[key] for state in states] for key in ("step", "exp_avg", "exp_avg_sq"))
        rate, decay, beta1, beta2 = group["lr"], group["weight_decay"], group["beta1"], group["beta2"]
        torch._foreach_add_(steps, torch.tensor(1.0), alpha=1.0)
        if decay and self.decoupled:
            torch._foreach_mul_(parameters, 1 - rate * decay)
        elif decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        counts = [step.item() for step in steps]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [(1 - beta2**count) ** 0.5 for count in counts])
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, means, roots, [rate / (1 - beta1**count) * -1 for count in counts])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The names and shapes of torch's Adam, which are those of the checkpoints."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


class SGD(_Optimiser):
    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, lr=lr, weight_decay=0.0, momentum=momentum)

    def _update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        if group["momentum"]:
            gradients = [
                self._velocity(p, gradient, group["momentum"])
                for p, gradient in zip(parameters, gradients, strict=True)
            ]
        torch._foreach_add_(parameters, gradients, alpha=-group["lr"])

    def _velocity(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if "momentum_buffer" in state:
            return state["momentum_buffer"].mul_(momentum).add_(gradient)
        state["momentum_buffer"] = gradient.clone()
        return state["momentum_buffer"]
