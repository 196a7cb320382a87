"""GraphSAGE (Hamilton et al. 2017): X W_root + reduce(neighbours) W_neighbour + b."""

from dataclasses import replace

from torch import Tensor

from weft.aggregate import GraphView
from weft.aggregate.reducers import fold_named
from weft.aggregate.topology import Reduce
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.layer import NATIVE, Layer, weight_first
from weft.layers.linear import linear, linear_sides
from weft.layers.registry import register_layer
from weft.layers.separation import BeforeGather, Gathering, OpBuilder
from weft.layers.traits import LayerTraits


class SAGE(Layer):
    def __init__(self, num_in: int, num_out: int, reduce: Reduce = "mean", use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out, self.reduce = num_in, num_out, reduce
        self.root = by_fan_in(num_out, num_in)
        self.neighbour = by_fan_in(num_out, num_in)
        self.bias = bias_by_fan_in(num_out, num_in, use_bias)

    @property
    def traits(self) -> LayerTraits:
        return replace(NATIVE, input_aggregate=(self.reduce, None))

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        if self.reduce != "max" and weight_first(graph, x, self.num_in, self.num_out):
            own, messages = linear_sides(graph, x, [self.root], [self.neighbour])
            return graph.aggregate(messages, self.reduce, into=own)
        return linear(graph.aggregate(x, self.reduce), self.neighbour, into=linear(graph.own(x), self.root))

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather | None:
        if self.reduce == "max":
            return None
        gathering = Gathering(self.reduce, None, min(self.num_in, self.num_out))
        if self.num_out > self.num_in:
            return BeforeGather(x, gathering, keeps_input=True)
        own = ops.add("linear", x, weights=["root"])
        return BeforeGather(ops.add("linear", x, weights=["neighbour"]), gathering, own=own)

    def after_gather(self, ops: OpBuilder, gathered: str, x: str, of_input: bool) -> str:
        if of_input or self.num_out > self.num_in:
            neighbours = ops.add("linear", gathered, weights=["neighbour"])
            return ops.add("add", neighbours, ops.add("linear", x, weights=["root"]))
        return gathered


register_layer(
    "sage",
    lambda config, place: SAGE(place.num_in, place.num_out, config.reduce),
    options=["reduce"],
    reducer=lambda config: fold_named(config.reduce).traits,
)
