"""GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022): attention over in-edges and a self-loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from weft import kernels
from weft.aggregate import EdgeRows, GraphView
from weft.aggregate.async_rows import complete
from weft.aggregate.reducers import GATV2
from weft.layers.edge_reads import dropped
from weft.layers.heads import MultiHead, heads_at, traits_with_edges, wide
from weft.layers.initial import bias_by_fan_in, glorot, zeros
from weft.layers.layer import NATIVE
from weft.layers.linear import linear, linear_sides
from weft.layers.registry import Place, register_layer
from weft.layers.separation import BeforeGather, Gathering, OpBuilder, edge_programs
from weft_function.program import Op

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig

# The softmax's backward pass reads the output.
_TRAITS = replace(NATIVE, adds_loops=True, output_is_free=False, attention=True)


class _Leaky(MultiHead):
    """Logits through a leaky relu."""

    def __init__(
        self,
        num_in: int,
        num_head_out: int,
        heads: int = 1,
        concat: bool = True,
        slope: float = 0.2,
        dropout: float = 0.0,
        use_bias: bool = True,
        edge_dim: int = 0,
        edge_weight: bool = False,
    ) -> None:
        super().__init__(num_in, num_head_out, heads, concat, dropout, use_bias, edge_dim, edge_weight)
        self.slope = slope

    def finish(self, out: Tensor, dtype: torch.dtype) -> Tensor:
        """The heads together, in the precision of the rows that came in."""
        out = self.merge(out)
        return out if out.dtype == dtype else out.to(dtype)


class GAT(_Leaky):
    traits = traits_with_edges(_TRAITS)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.weight = glorot(self.heads * self.width, num_in)
        self.source = glorot(self.heads, self.width)
        self.target = glorot(self.heads, self.width)
        self.bias = zeros(self.num_out, use_bias)

    def make_edge_parameters(self, num_columns: int) -> None:
        self.edge = glorot(self.heads * self.width, num_columns)
        self.edge_term = glorot(self.heads, self.width)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        values = wide(linear(x, self.weight))
        values, source, target = _LogitTerms.apply(values, self.source, self.target)  # type: ignore[no-untyped-call]
        if self.edges:
            out = self._attend_with_edges(graph, values, source, graph.own(target))
        else:
            out = graph.attend(values, source, graph.own(target), slope=self.slope, dropout=self.dropout)
        return self.finish(out, x.dtype)

    def _attend_with_edges(self, graph: GraphView, values: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The same with one more term in each logit, which comes from what the edge carries."""
        self.edges.check(graph, self)
        dropout = graph.attention_dropout(self.dropout)
        of_head = self.edge.view(self.heads, self.width, -1)
        term = (of_head * self.edge_term.unsqueeze(2)).sum(1)  # [H, F]: of all features of an edge, in its logits

        def message(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            values, source = edges.src[:, : -self.heads], edges.src[:, -self.heads :]
            logits = edges.dst + source + functional.linear(self.edges.columns(edges), term)
            return functional.leaky_relu(logits, self.slope), dropped(edges, values, self.heads, dropout)

        return graph.message(message, torch.cat([values, source], 1), "softmax", own=target, loops=True)

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather | None:
        if self.edges:
            return None
        values = ops.add("linear", x, weights=["weight"])
        source = ops.add("head_dot", values, weights=["source"])
        target = ops.add("head_dot", values, weights=["target"])
        sum_of_terms = Op("add", ("source", "target"), "sum")
        logits = Op("leaky_relu", ("sum",), "logits", settings=(("slope", self.slope),))
        programs = edge_programs((sum_of_terms, logits))
        gathering = Gathering("attend", None, self.heads * self.width, self.heads, self.heads, *programs)
        return BeforeGather(values, gathering, source, target, num_draws=1)

    def after_gather(self, ops: OpBuilder, gathered: str, x: str, of_input: bool) -> str:
        if self.concat or self.heads == 1:
            return gathered
        return ops.add("head_mean", gathered, settings={"heads": self.heads})


class GATv2(_Leaky):
    traits = traits_with_edges(_TRAITS)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.key = glorot(self.heads * self.width, num_in)
        self.key_bias = bias_by_fan_in(self.heads * self.width, num_in, use_bias)
        self.query = glorot(self.heads * self.width, num_in)
        self.query_bias = bias_by_fan_in(self.heads * self.width, num_in, use_bias)
        self.att = glorot(self.heads, self.width)
        self.bias = zeros(self.num_out, use_bias)

    def make_edge_parameters(self, num_columns: int) -> None:
        self.edge = glorot(self.heads * self.width, num_columns)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        query, key = (wide(rows) for rows in linear_sides(graph, x, [self.query], [self.key]))
        if self.query_bias is not None and self.key_bias is not None:
            query, key = query + self.query_bias, key + self.key_bias
        if self.edges:
            out = self._attend_with_edges(graph, query, key)
        else:
            out = graph.attend_dynamic(query, key, self.att, slope=self.slope, dropout=self.dropout)
        return self.finish(out, x.dtype)

    def _attend_with_edges(self, graph: GraphView, query: Tensor, key: Tensor) -> Tensor:
        """The same with a row for what the edge carries in each sum of query and key."""
        self.edges.check(graph, self)
        dropout = graph.attention_dropout(self.dropout)

        def message(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            both = edges.dst + edges.src + functional.linear(self.edges.columns(edges), self.edge)
            both = functional.leaky_relu(both, self.slope).view(-1, self.heads, self.width)
            return (both * self.att).sum(2), dropped(edges, edges.src, self.heads, dropout)

        return graph.message(message, key, "softmax", own=query, loops=True)


class _LogitTerms(torch.autograd.Function):
    """Values as they are, and each vertex's two logit terms per head, [N, H] each.

    The values pass through, so that backward adds the terms' gradient to theirs and makes no matrix of its own.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = complete(values)
        ctx.save_for_backward(values, source, target)
        return values.view_as(values), kernels.head_dot(values, source), kernels.head_dot(values, target)

    @staticmethod
    def backward(ctx: Any, d_values: Tensor, d_source: Tensor, d_target: Tensor) -> tuple[Tensor, ...]:
        values, source, target = ctx.saved_tensors
        att = torch.zeros_like(source), torch.zeros_like(target)
        d_values = complete(d_values).contiguous()
        kernels.head_dot_backward(values, source, d_source.contiguous(), d_values, att[0])
        kernels.head_dot_backward(values, target, d_target.contiguous(), d_values, att[1])
        return d_values, *att


def _build(kind: type[_Leaky]) -> Callable[["ModelConfig", Place], _Leaky]:
    def build(config: "ModelConfig", place: Place) -> _Leaky:
        slope, dropout = config.negative_slope, config.attention_dropout
        heads, edges = heads_at(config, place), place.edges
        return kind(
            place.num_in, place.num_out, heads, not place.last, slope, dropout,
            edge_dim=edges.features, edge_weight=edges.weight,
        )  # fmt: skip

    return build


_OPTIONS = ("heads", "output_heads", "attention_dropout", "negative_slope", "edge_features", "edge_weights")
register_layer("gat", _build(GAT), _OPTIONS)
register_layer("gatv2", _build(GATv2), _OPTIONS, reducer=lambda config: GATV2.traits)
