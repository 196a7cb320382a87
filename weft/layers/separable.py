"""A layer of a user's own that says what belongs to a vertex and what to an edge."""

from typing import ClassVar, Literal

from torch import Tensor, nn

from weft.aggregate import EdgeRows, GraphView
from weft.layers.separation import BeforeGather, Gathering, OpBuilder, edge_programs
from weft_function.program import Op


class Separable(nn.Module):
    """A layer in three functions of rows, so that any executor can run it, a part at a time and anywhere.

    `before` makes of each vertex's rows what goes along its out-edges; `after` makes the layer's output of what was
    gathered and of the vertex's own rows. With `edge`, which sees what both ends of each edge sent and returns logits
    [E, heads], rows are averaged by the softmax of their logits over a vertex's in-edges, each head its columns;
    without it they are summed or averaged, as `reduce` says.

    All three are static and get, after their rows, the parameters that `before_weights`, `edge_weights` and
    `after_weights` name. Workers elsewhere run them where their module is on the Python path and trusted
    (`weft worker --trust`).
    """

    num_out: int
    num_sent: int  # columns that `before` returns
    reduce: Literal["sum", "mean"] = "sum"
    heads = 1
    before_weights: ClassVar[tuple[str, ...]] = ()
    edge_weights: ClassVar[tuple[str, ...]] = ()
    after_weights: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def before(x: Tensor, *weights: Tensor) -> Tensor:
        return x

    @staticmethod
    def edge(source: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def after(gathered: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
        return gathered

    @classmethod
    def has_edges(cls) -> bool:
        return cls.edge is not Separable.edge

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        sent = self.before(x, *self._named(self.before_weights))
        if not self.has_edges():
            gathered = graph.aggregate(sent, self.reduce)
        else:
            weights = self._named(self.edge_weights)

            def message(edges: EdgeRows) -> tuple[Tensor, Tensor]:
                return self.edge(edges.src, edges.dst, *weights), edges.src

            gathered = graph.message(message, sent, "softmax")
        return self.after(gathered, graph.own(x), *self._named(self.after_weights))

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather:
        sent = ops.add("call", x, weights=self.before_weights, call=self._reference("before"))
        if not self.has_edges():
            return BeforeGather(sent, Gathering(self.reduce, None, self.num_sent), keeps_input=True)
        weights = tuple(ops.weight_name(name) for name in self.edge_weights)
        logits = Op("call", ("source", "target"), "logits", weights, call=self._reference("edge"))
        gathering = Gathering("attend_plain", None, self.num_sent, self.heads, 0, *edge_programs([logits]))
        return BeforeGather(sent, gathering, keeps_input=True)

    def after_gather(self, ops: OpBuilder, gathered: str, x: str, of_input: bool) -> str:
        return ops.add("call", gathered, x, weights=self.after_weights, call=self._reference("after"))

    def _reference(self, function: str) -> str:
        """The name under which workers elsewhere import one of the functions."""
        return f"{type(self).__module__}:{type(self).__qualname__}.{function}"

    def _named(self, names: tuple[str, ...]) -> list[Tensor]:
        return [self.get_parameter(name) for name in names]
