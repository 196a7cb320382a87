"""What an operation of a program is: a forward pass and its derivative, with declared operands and settings."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

Array = Any  # numpy.ndarray: its operators are untyped
Grads = tuple[list[Array | None], list[Array]]  # of the inputs, of the weights


class Operation:
    """Reads arrays of rows and returns one. `forward` keeps what `backward` needs."""

    num_inputs: ClassVar[int] = 1  # -1: any number
    num_weights: ClassVar[int] = 0  # -1: any number
    settings: ClassVar[tuple[str, ...]] = ()
    keyed: ClassVar[bool] = False  # whether the operation draws random bits

    def __init__(
        self, settings: Mapping[str, float], key: int | None, call: str | None, needs_grad: tuple[bool, ...]
    ) -> None:
        """`needs_grad`: for each input, whether its gradient is needed."""
        self.set, self.key, self.call, self.needs_grad = settings, key, call, needs_grad

    @classmethod
    def check(cls, inputs: int, weights: int, settings: Mapping[str, float], key: str | None) -> None:
        """Raises ValueError if a program uses the operation with other operands than it has."""
        name = cls.__name__
        if cls.num_inputs >= 0 and inputs != cls.num_inputs:
            raise ValueError(f"operation {name} reads {cls.num_inputs} values, not {inputs}")
        if cls.num_weights >= 0 and weights != cls.num_weights:
            raise ValueError(f"operation {name} has {cls.num_weights} weights, not {weights}")
        if set(settings) != set(cls.settings):
            raise ValueError(f"operation {name} has the settings {sorted(cls.settings)}, not {sorted(settings)}")
        if (key is not None) != cls.keyed:
            raise ValueError(f"operation {name} has {'a' if cls.keyed else 'no'} key")

    def forward(self, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
        raise NotImplementedError

    def backward(self, grad: Array) -> Grads:
        raise NotImplementedError
