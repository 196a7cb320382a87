"""GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022): attention over in-edges and a self-loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate import GraphView
from weft.aggregate.async_rows import complete
from weft.aggregate.reducers import GATV2
from weft.layers.heads import MultiHead, heads_at, wide
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
    ) -> None:
        super().__init__(num_in, num_head_out, heads, concat, dropout, use_bias)
        self.slope = slope

    def finish(self, out: Tensor, dtype: torch.dtype) -> Tensor:
        """The heads together, in the precision of the rows that came in."""
        out = self.merge(out)
        return out if out.dtype == dtype else out.to(dtype)


class GAT(_Leaky):
    traits = _TRAITS

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.weight = glorot(self.heads * self.width, num_in)
        self.source = glorot(self.heads, self.width)
        self.target = glorot(self.heads, self.width)
        self.bias = zeros(self.num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        values = wide(linear(x, self.weight))
        values, source, target = _LogitTerms.apply(values, self.source, self.target)  # type: ignore[no-untyped-call]
        out = graph.attend(values, source, graph.own(target), slope=self.slope, dropout=self.dropout)
        return self.finish(out, x.dtype)

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather:
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
    traits = _TRAITS

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.key = glorot(self.heads * self.width, num_in)
        self.key_bias = bias_by_fan_in(self.heads * self.width, num_in, use_bias)
        self.query = glorot(self.heads * self.width, num_in)
        self.query_bias = bias_by_fan_in(self.heads * self.width, num_in, use_bias)
        self.att = glorot(self.heads, self.width)
        self.bias = zeros(self.num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        query, key = (wide(rows) for rows in linear_sides(graph, x, [self.query], [self.key]))
        if self.query_bias is not None and self.key_bias is not None:
            query, key = query + self.query_bias, key + self.key_bias
        out = graph.attend_dynamic(query, key, self.att, slope=self.slope, dropout=self.dropout)
        return self.finish(out, x.dtype)


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
        return kind(place.num_in, place.num_out, heads_at(config, place), not place.last, slope, dropout)

    return build


_OPTIONS = ("heads", "output_heads", "attention_dropout", "negative_slope")
register_layer("gat", _build(GAT), _OPTIONS)
register_layer("gatv2", _build(GATv2), _OPTIONS, reducer=lambda config: GATV2.traits)
