"""GCN (Kipf & Welling 2017): D^-1/2 (A + I) D^-1/2 X W + b."""

from dataclasses import replace

from torch import Tensor

from weft.aggregate import GraphView
from weft.layers.initial import glorot, zeros
from weft.layers.layer import NATIVE, Layer, weight_first
from weft.layers.linear import linear, linear_of
from weft.layers.registry import register_layer
from weft.layers.separation import BeforeGather, Gathering, OpBuilder


class GCN(Layer):
    traits = replace(
        NATIVE, adds_loops=True, wants_degrees=True, reads_input=False, input_aggregate=("sum", "symmetric"),
        edge_data=frozenset(["weight"]),
    )  # fmt: skip

    def __init__(self, num_in: int, num_out: int, use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out = num_in, num_out
        self.weight = glorot(num_out, num_in)
        self.bias = zeros(num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        if weight_first(graph, x, self.num_in, self.num_out):
            return graph.aggregate(linear(x, self.weight), "sum", "symmetric")
        return linear_of(graph, graph.aggregate(x, "sum", "symmetric"), self.weight)

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather:
        sent = ops.add("linear", x, weights=["weight"]) if self.num_out <= self.num_in else x
        return BeforeGather(sent, Gathering("sum", "symmetric", min(self.num_in, self.num_out)))

    def after_gather(self, ops: OpBuilder, gathered: str, x: str, of_input: bool) -> str:
        if of_input or self.num_out > self.num_in:
            return ops.add("linear", gathered, weights=["weight"])
        return gathered


register_layer("gcn", lambda config, place: GCN(place.num_in, place.num_out))
