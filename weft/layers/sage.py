"""GraphSAGE (Hamilton et al. 2017): X W_root + reduce(neighbours) W_neighbour + b."""

from torch import Tensor

from weft.aggregate import GraphView
from weft.aggregate.late import alone
from weft.aggregate.topology import Reduce, Weight
from weft.layers.layer import Layer, weight_first
from weft.layers.linear import bias, linear, linear_sides, weight


class SAGE(Layer):
    late_output = late_input = True

    def __init__(self, num_in: int, num_out: int, reduce: Reduce = "mean", use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out, self.reduce = num_in, num_out, reduce
        self.root = weight(num_out, num_in)
        self.neighbour = weight(num_out, num_in)
        self.bias = bias(num_out, use_bias)

    def input_aggregate(self) -> tuple[Reduce, Weight]:
        return self.reduce, None

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        if self.reduce != "max" and weight_first(graph, x, self.num_in, self.num_out):
            own, messages = linear_sides(graph, x, [self.root], [self.neighbour], only=True)
            return graph.aggregate(alone(messages), self.reduce, into=own)
        return linear(graph.aggregate(x, self.reduce), self.neighbour, into=linear(graph.own(x), self.root))
