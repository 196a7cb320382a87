"""Graph transformer (Shi et al. 2021): dot-product attention over in-edges, plus a linear map of the vertex itself."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from weft.aggregate import EdgeRows, GraphView
from weft.layers.edge_reads import dropped
from weft.layers.heads import MultiHead, heads_at, traits_with_edges, wide
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.layer import NATIVE
from weft.layers.linear import linear_sides
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class Transformer(MultiHead):
    """No self-loop: a vertex sees itself through `root`, and one without in-edges sees nothing else."""

    traits = traits_with_edges(replace(NATIVE, attention=True))

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        num_all = self.heads * self.width
        self.query, self.query_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.key, self.key_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.value, self.value_bias = by_fan_in(num_all, num_in), bias_by_fan_in(num_all, num_in, use_bias)
        self.root = by_fan_in(self.num_out, num_in)
        self.bias = bias_by_fan_in(self.num_out, num_in, use_bias)

    def make_edge_parameters(self, num_columns: int) -> None:
        self.edge = by_fan_in(self.heads * self.width, num_columns)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        query, own, *rows = linear_sides(graph, x, [self.query, self.root], [self.key, self.value])
        biases = (self.query_bias, self.key_bias, self.value_bias)
        query, key, values = (_plus(wide(r), b) for r, b in zip((query, *rows), biases, strict=True))
        if self.edges:
            out = self._attend_with_edges(graph, query, key, values)
        else:
            out = graph.attend_dot(query, key, values, self.heads, dropout=self.dropout)
        return own.add_(self.merge(out))  # out itself is kept for the softmax's backward pass

    def _attend_with_edges(self, graph: GraphView, query: Tensor, key: Tensor, values: Tensor) -> Tensor:
        """The same with a row for what the edge carries added to its key and its value."""
        self.edges.check(graph, self)
        dropout = graph.attention_dropout(self.dropout)

        def message(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            key, values = edges.src.chunk(2, 1)
            of_edge = functional.linear(self.edges.columns(edges), self.edge)
            dots = ((key + of_edge) * edges.dst).view(-1, self.heads, self.width).sum(2)
            return dots * self.width**-0.5, dropped(edges, values + of_edge, self.heads, dropout)

        return graph.message(message, torch.cat([key, values], 1), "softmax", own=query)


def _plus(rows: Tensor, shift: Tensor | None) -> Tensor:
    """In place: these rows are this layer's own, and their product does not read them again."""
    return rows if shift is None else rows.add_(shift)


def _build(config: "ModelConfig", place: Place) -> Transformer:
    heads, edges = heads_at(config, place), place.edges
    return Transformer(
        place.num_in, place.num_out, heads, not place.last, config.attention_dropout,
        edge_dim=edges.features, edge_weight=edges.weight,
    )  # fmt: skip


register_layer("transformer", _build, ["heads", "output_heads", "attention_dropout", "edge_features", "edge_weights"])
