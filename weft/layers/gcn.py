"""GCN (Kipf & Welling 2017): D^-1/2 (A + I) D^-1/2 X W + b."""

from torch import Tensor

from weft.aggregate import GraphView
from weft.aggregate.late import alone
from weft.aggregate.topology import Reduce, Weight
from weft.layers.layer import Layer, weight_first
from weft.layers.linear import bias, linear, weight


class GCN(Layer):
    late_output = late_input = True
    adds_loops = wants_degrees = True
    reads_input = False

    def __init__(self, num_in: int, num_out: int, use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out = num_in, num_out
        self.weight = weight(num_out, num_in)
        self.bias = bias(num_out, use_bias)

    def input_aggregate(self) -> tuple[Reduce, Weight]:
        return "sum", "symmetric"

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        if weight_first(graph, x, self.num_in, self.num_out):
            return graph.aggregate(alone(linear(x, self.weight, only=True)), "sum", "symmetric")
        return linear(graph.aggregate(x, "sum", "symmetric"), self.weight)
