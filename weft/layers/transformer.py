"""Graph transformer (Shi et al. 2021): dot-product attention over in-edges, plus a linear map of the vertex itself."""

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from weft.aggregate import GraphView
from weft.layers.heads import MultiHead, heads_at, wide
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.layer import NATIVE
from weft.layers.linear import linear_sides
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class Transformer(MultiHead):
    """No self-loop: a vertex sees itself through `root`, and one without in-edges sees nothing else."""

    traits = replace(NATIVE, attention=True)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        num_all = self.heads * self.width
        self.query, self.query_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.key, self.key_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.value, self.value_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.root = by_fan_in(self.num_out, num_in)
        self.bias = bias_by_fan_in(self.num_out, num_in, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        query, own, *rows = linear_sides(graph, x, [self.query, self.root], [self.key, self.value])
        biases = (self.query_bias, self.key_bias, self.value_bias)
        query, key, values = (_plus(wide(r), b) for r, b in zip((query, *rows), biases, strict=True))
        out = graph.attend_dot(query, key, values, self.heads, dropout=self.dropout)
        return own.add_(self.merge(out))  # out itself is kept for the softmax's backward pass


def _plus(rows: Tensor, shift: Tensor | None) -> Tensor:
    """In place: these rows are this layer's own, and their product does not read them again."""
    return rows if shift is None else rows.add_(shift)


def _build(config: "ModelConfig", place: Place) -> Transformer:
    return Transformer(place.num_in, place.num_out, heads_at(config, place), not place.last, config.attention_dropout)


register_layer("transformer", _build, ["heads", "output_heads", "attention_dropout"])
