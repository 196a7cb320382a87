"""GraphSAGE (Hamilton et al. 2017): X W_root + reduce(neighbours) W_neighbour + b."""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from weft.aggregate import EdgeRows, GraphView
from weft.aggregate.reducers import fold_named
from weft.aggregate.topology import Reduce, Weight
from weft.layers.edge_reads import EdgeReads
from weft.layers.heads import wide
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.layer import NATIVE, Layer, weight_first
from weft.layers.linear import linear, linear_of, linear_sides
from weft.layers.registry import register_layer
from weft.layers.separation import BeforeGather, Gathering, OpBuilder
from weft.layers.traits import LayerTraits


class SAGE(Layer):
    """Of edges it reads, where asked to, their features and weights.

    A linear map of an edge's features is added to the row of its source before rows are folded: reduce(x_j + E e_ij).
    With weights a mean is the weighted one, and a sum or maximum is that of rows times their edges' weights.
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        reduce: Reduce = "mean",
        use_bias: bool = True,
        edge_dim: int = 0,
        edge_weight: bool = False,
    ) -> None:
        super().__init__()
        self.num_in, self.num_out, self.reduce = num_in, num_out, reduce
        self.root = by_fan_in(num_out, num_in)
        self.neighbour = by_fan_in(num_out, num_in)
        self.bias = bias_by_fan_in(num_out, num_in, use_bias)
        self.edges = EdgeReads(edge_dim, edge_weight)
        self.edge = by_fan_in(num_in, edge_dim) if edge_dim else None
        self._weight: Weight = "edge" if edge_weight else None

    @property
    def traits(self) -> LayerTraits:
        known = None if self.edges.features else (self.reduce, self._weight)
        return replace(NATIVE, input_aggregate=known, edge_data=self.edges.names)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        if self.edges:
            self.edges.check(graph, self)
        if self.edge is not None and self.reduce == "max":
            return self._largest_with_edges(graph, x, self.edge)
        if self.reduce != "max" and weight_first(graph, x, self.num_in, self.num_out):
            own, messages = linear_sides(graph, x, [self.root], [self.neighbour])
            out = graph.aggregate(messages, self.reduce, self._weight, into=own)
            return out if self.edge is None else linear(self._of_edges(graph, x, self.edge), self.neighbour, into=out)
        rows = graph.aggregate(x, self.reduce, self._weight)
        if self.edge is not None:
            rows = rows + self._of_edges(graph, x, self.edge)
        return linear_of(graph, rows, self.neighbour, into=linear_of(graph, graph.own(x), self.root))

    def _of_edges(self, graph: GraphView, x: Tensor, matrix: Tensor) -> Tensor:
        """What edges add to the aggregate of rows, [num_out, in]: sums and means go through a linear map."""
        folded = graph.aggregate_edges(self.reduce, self._weight, x.dtype)
        return functional.linear(folded, matrix).to(x.dtype)

    def _largest_with_edges(self, graph: GraphView, x: Tensor, matrix: Tensor) -> Tensor:
        def message(edges: EdgeRows) -> Tensor:
            features = edges.features
            assert features is not None
            rows = edges.src + functional.linear(features, matrix)
            return rows if self._weight is None or edges.weight is None else rows * edges.weight.unsqueeze(1)

        rows = graph.message(message, wide(x), "max").to(x.dtype)
        return linear(rows, self.neighbour, into=linear(graph.own(x), self.root))

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather | None:
        if self.reduce == "max" or self.edge is not None:
            return None
        gathering = Gathering(self.reduce, self._weight, min(self.num_in, self.num_out))
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
    lambda config, place: SAGE(
        place.num_in, place.num_out, config.reduce, edge_dim=place.edges.features, edge_weight=place.edges.weight
    ),
    options=["reduce", "edge_features", "edge_weights"],
    reducer=lambda config: fold_named(config.reduce).traits,
)
