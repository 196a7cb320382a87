"""GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022): attention over in-edges and a self-loop."""

from typing import Any

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate import GraphView
from weft.layers.layer import Layer
from weft.layers.linear import bias, linear, linear_pair, weight


class _MultiHead(Layer):
    """Heads side by side ([N, H*D]) or, with `concat=False`, their mean ([N, D])."""

    output_is_free = False  # the softmax's backward pass reads it

    def __init__(self, num_head_out: int, heads: int, concat: bool, slope: float, dropout: float) -> None:
        super().__init__()
        self.heads, self.width, self.concat = heads, num_head_out, concat
        self.slope, self.dropout = slope, dropout
        self.num_out = heads * num_head_out if concat else num_head_out

    def _merge(self, out: Tensor) -> Tensor:
        if self.concat or self.heads == 1:
            return out
        return out.view(-1, self.heads, self.width).mean(1)


class GAT(_MultiHead):
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
        super().__init__(num_head_out, heads, concat, slope, dropout)
        self.weight = weight(heads * num_head_out, num_in)
        self.source = weight(heads, num_head_out)
        self.target = weight(heads, num_head_out)
        self.bias = bias(self.num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        values = _wide(linear(x, self.weight))
        values, source, target = _LogitTerms.apply(values, self.source, self.target)  # type: ignore[no-untyped-call]
        out = graph.attend(values, source, target, slope=self.slope, dropout=self.dropout)
        return self._merge(out).to(x.dtype)


class GATv2(_MultiHead):
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
        super().__init__(num_head_out, heads, concat, slope, dropout)
        self.key = weight(heads * num_head_out, num_in)
        self.key_bias = bias(heads * num_head_out, use_bias)
        self.query = weight(heads * num_head_out, num_in)
        self.query_bias = bias(heads * num_head_out, use_bias)
        self.att = weight(heads, num_head_out)
        self.bias = bias(self.num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        query, key = (_wide(rows) for rows in linear_pair(x, self.query, self.key))
        if self.query_bias is not None and self.key_bias is not None:
            query, key = query + self.query_bias, key + self.key_bias
        out = graph.attend_dynamic(query, key, self.att, slope=self.slope, dropout=self.dropout)
        return self._merge(out).to(x.dtype)


def _wide(rows: Tensor) -> Tensor:
    """Softmax wants more than bf16 holds."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


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
