"""What makes a model's outputs where its last layer does not."""

from typing import cast

from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.linear import linear
from weft.layers.separation import OpBuilder


class OutputLinear(nn.Module):
    """A linear map of each row by itself, behind the last layer of a stack; starts as torch.nn.Linear does."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.num_in, self.num_out = num_in, num_out
        self.weight = by_fan_in(num_out, num_in)
        self.bias = cast(nn.Parameter, bias_by_fan_in(num_out, num_in))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        return linear(x, self.weight) + self.bias.to(x.dtype)

    def vertex_ops(self, ops: OpBuilder, x: str) -> str:
        return ops.add("bias", ops.add("linear", x, weights=["weight"]), weights=["bias"])
