"""What a layer of ours is. A user's own needs only `forward(graph, x)`."""

from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.layers.traits import LayerTraits

EDGE_COST = 16  # of reading a number for an aggregate, in multiplications of a product

NATIVE = LayerTraits(any_level=True, restrictable=True, output_is_free=True, fuses_bias=True, edge_data=frozenset())


class Layer(nn.Module):
    """A layer whose bias can be fused: `combine` does the work up to it.

    A class that defines `combine` declares `traits` with it, of which `NATIVE` are those that ours have in common.
    """

    bias: nn.Parameter | None
    num_out: int

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it combines rows")

    def forward(self, graph: GraphView, x: Tensor, add_bias: bool = True) -> Tensor:
        """The layer's output; with `add_bias=False`, its caller adds `bias`, together with an activation."""
        out = self.combine(graph, x)
        return out + self.bias.to(out.dtype) if add_bias and self.bias is not None else out


def weight_first(graph: GraphView, x: Tensor, num_in: int, num_out: int) -> bool:
    """Whether to multiply before aggregating: rows get narrower, or at equal width nothing need be kept.

    An aggregate of constant input costs nothing after the first epoch, so there it comes first. Where fewer rows come
    out than go in and none travels, as in minibatches, what costs less comes first. Where rows travel, all workers
    decide alike: narrower ones do, and of equal ones the fewer are multiplied.
    """
    if graph.is_constant(x):
        return False
    if graph.exchanges:
        return num_out < num_in or (num_out == num_in and not graph.of_minibatch)
    if graph.num_out == graph.num_rows:
        return num_out <= num_in
    product, edges = num_in * num_out, EDGE_COST * graph.num_edges
    return graph.num_rows * product + edges * num_out < graph.num_out * product + edges * num_in
