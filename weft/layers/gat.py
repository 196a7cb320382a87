"""GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022): attention over in-edges and a self-loop."""

from typing import Any

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate import GraphView
from weft.aggregate.late import settle
from weft.layers.heads import MultiHead, wide
from weft.layers.linear import bias, linear, linear_sides, weight


class _Leaky(MultiHead):
    """Logits through a leaky relu, and an output that the softmax's backward pass reads."""

    output_is_free = False
    adds_loops = True

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
        self.late_output = concat or heads == 1  # a mean over heads would read rows that are not there

    def finish(self, out: Tensor, dtype: torch.dtype) -> Tensor:
        """The heads together, in the precision of the rows that came in."""
        if out.dtype != dtype:
            settle(out)
        return self.merge(out).to(dtype)


class GAT(_Leaky):
    late_input = True

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.weight = weight(self.heads * self.width, num_in)
        self.source = weight(self.heads, self.width)
        self.target = weight(self.heads, self.width)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        values = linear(x, self.weight)
        settle(values)
        values = wide(values)
        values, source, target = _LogitTerms.apply(values, self.source, self.target)  # type: ignore[no-untyped-call]
        out = graph.attend(values, source, graph.own(target), slope=self.slope, dropout=self.dropout)
        return self.finish(out, x.dtype)


class GATv2(_Leaky):
    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        self.key = weight(self.heads * self.width, num_in)
        self.key_bias = bias(self.heads * self.width, use_bias)
        self.query = weight(self.heads * self.width, num_in)
        self.query_bias = bias(self.heads * self.width, use_bias)
        self.att = weight(self.heads, self.width)

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
        ctx.save_for_backward(values, source, target)
        return values.view_as(values), kernels.head_dot(values, source), kernels.head_dot(values, target)

    @staticmethod
    def backward(ctx: Any, d_values: Tensor, d_source: Tensor, d_target: Tensor) -> tuple[Tensor, ...]:
        values, source, target = ctx.saved_tensors
        att = torch.zeros_like(source), torch.zeros_like(target)
        d_values = d_values.contiguous()
        kernels.head_dot_backward(values, source, d_source.contiguous(), d_values, att[0])
        kernels.head_dot_backward(values, target, d_target.contiguous(), d_values, att[1])
        return d_values, *att
