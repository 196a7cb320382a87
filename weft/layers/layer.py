"""What a layer is. A user's own needs only `forward(graph, x)`; ours keep their bias apart so that it can be fused."""

from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.aggregate.topology import Reduce, Weight

EDGE_COST = 16  # of reading a number for an aggregate, in multiplications of a product


class Layer(nn.Module):
    """A native layer: `combine` does the work up to the bias, which the stack adds together with the activation."""

    bias: nn.Parameter | None
    num_out: int
    output_is_free = True  # whether the output of `combine` may be written to: nothing keeps it for backward
    late_output = False  # whether `combine` ends with an aggregation, or a product of one, and hands out a late tensor
    adds_loops = False  # whether every vertex gets an edge from itself
    reads_input = True  # whether the input is read otherwise than through `input_aggregate`
    wants_degrees = False  # whether coefficients depend on the degrees of sources
    late_input = False  # whether the first thing that `combine` does with x is a product or an aggregation

    def input_aggregate(self) -> tuple[Reduce, Weight] | None:
        """The one aggregate of its input that the layer reads, if that has no parameters: of constant rows a constant.

        None: there is none such (attention), so that it cannot be kept.
        """
        return None

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it combines rows")

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        out = self.combine(graph, x)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def weight_first(graph: GraphView, x: Tensor, num_in: int, num_out: int) -> bool:
    """Whether to multiply before aggregating: rows get narrower, or at equal width nothing need be kept.

    An aggregate of constant input costs nothing after the first epoch, so there it comes first. Where fewer rows come
    out than go in and none travels, as in minibatches, what costs less comes first. Where rows travel, all workers
    decide alike: narrower ones do, and of equal ones the fewer are multiplied.
    """
    if graph.is_constant(x):
        return False
    if graph.exchanges:
        return num_out < num_in or (num_out == num_in and not graph.topology.narrows)
    if graph.num_out == graph.num_rows:
        return num_out <= num_in
    product, edges = num_in * num_out, EDGE_COST * graph.num_edges
    return graph.num_rows * product + edges * num_out < graph.num_out * product + edges * num_in
