"""Relational graph attention (Busbridge et al. 2019): attention over in-edges, each with the matrix of its relation.

As PyG's RGATConv by its defaults: additive logits, leaky_relu(q W_r x_i + k W_r x_j), and one softmax over all in-edges
of a vertex, whatever their relations.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.aggregate import EdgeRows, GraphView
from weft.aggregate.reducers import BIASED_SOFTMAX, Traits
from weft.errors import UserError
from weft.layers.heads import MultiHead, heads_at, wide
from weft.layers.initial import glorot, zeros
from weft.layers.kinds import matmul_by_relation
from weft.layers.layer import NATIVE
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class RGAT(MultiHead):
    """No self-loop and no map of the vertex itself: one without in-edges keeps the bias alone."""

    traits = replace(NATIVE, attention=True, output_is_free=False, edge_data=frozenset(["relation"]))

    def __init__(
        self,
        num_in: int,
        num_head_out: int,
        num_relations: int,
        heads: int = 1,
        concat: bool = True,
        slope: float = 0.2,
        use_bias: bool = True,
    ) -> None:
        self.num_relations, self.slope = num_relations, slope
        super().__init__(num_in, num_head_out, heads, concat, use_bias=use_bias)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        num_all = self.heads * self.width
        matrices = [glorot(num_in, num_all).detach() for _ in range(self.num_relations)]
        self.weight = nn.Parameter(torch.stack(matrices))  # [R, in, H*out]
        self.target = glorot(num_all, self.heads)  # [H*out, H], as all heads' columns speak for each
        self.source = glorot(num_all, self.heads)
        self.bias = zeros(self.num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        rows = wide(x)
        weight = self.weight.to(rows.dtype)
        # A source gives its values and its terms of the logits, a destination its terms alone.
        sent = torch.cat([weight, weight @ self.source.to(rows.dtype)], dim=2)[:, None]
        own = (weight @ self.target.to(rows.dtype))[:, None]
        num_values, slope = self.heads * self.width, self.slope

        def attended(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            kinds = edges.relation
            assert kinds is not None
            values, source = matmul_by_relation(edges.src, kinds, sent).tensor_split([num_values], dim=1)
            target = matmul_by_relation(edges.dst, kinds, own)
            return nn.functional.leaky_relu(source + target, slope), values

        out = self.merge(graph.message(attended, rows, "softmax"))
        return out if out.dtype == x.dtype else out.to(x.dtype)


def _build(config: "ModelConfig", place: Place) -> RGAT:
    if place.num_relations == 0:
        raise UserError(
            "model rgat learns from edges of several relations, but this graph has one kind of edges: ingest it with "
            "--relation-column or as graph.yaml, or use gat"
        )
    heads = heads_at(config, place)
    return RGAT(place.num_in, place.num_out, place.num_relations, heads, not place.last, config.negative_slope)


register_layer(
    "rgat",
    _build,
    ("heads", "output_heads", "negative_slope"),
    reducer=lambda config: Traits(unroundable=BIASED_SOFTMAX),
)
