"""Heterogeneous graph transformer (Hu et al. 2020): attention whose parts depend on types of vertices and relations.

As PyG's HGTConv: keys, queries and values by the type of the vertex; of an edge, keys and values times the matrices of
its relation; one softmax over all in-edges of a vertex, whatever their relations; an output map by type, and a skip by
type where the width stays.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.aggregate import EdgeRows, GraphView
from weft.aggregate.reducers import BIASED_SOFTMAX, Traits
from weft.errors import UserError
from weft.layers.heads import wide
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.kinds import linear_by_type, matmul_by_relation, refuse_untyped
from weft.layers.layer import NATIVE, Layer
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class HGT(Layer):
    """A vertex without in-edges attends to nothing: it keeps its skip, and the bias of its type."""

    traits = replace(NATIVE, attention=True, output_is_free=False, edge_data=frozenset(["relation"]))

    def __init__(
        self, num_in: int, num_out: int, num_types: int, num_relations: int, heads: int = 1, width: int | None = None
    ) -> None:
        """`width`: of keys, queries and values over all heads; as wide as the output unless given."""
        super().__init__()
        self.num_in, self.num_out, self.heads, self.width = num_in, num_out, heads, width or num_out
        if self.width % heads:
            raise UserError(f"hgt has {heads} heads side by side in {self.width} columns: choose a multiple of heads")
        per_head = self.width // heads
        self.own = _stacked(num_types, self.width, num_in)  # queries
        self.own_bias = _stacked_biases(num_types, self.width, num_in)
        self.sent = _stacked(num_types, 2 * self.width, num_in)  # keys, then values
        self.sent_bias = _stacked_biases(num_types, 2 * self.width, num_in)
        matrices = [by_fan_in(per_head, per_head).detach() for _ in range(num_relations * 2 * heads)]
        self.relation = nn.Parameter(torch.stack(matrices).view(num_relations, 2 * heads, per_head, per_head))
        self.prior = nn.Parameter(torch.ones(num_relations, heads))
        self.out = _stacked(num_types, num_out, self.width)
        self.out_bias = _stacked_biases(num_types, num_out, self.width)
        self.skip = nn.Parameter(torch.ones(num_types)) if num_in == num_out else None
        self.bias = None  # of no type

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        rows = wide(x)
        sent = linear_by_type(graph, rows, self.sent, self.sent_bias)
        queries = linear_by_type(graph, graph.own(rows), self.own, self.own_bias)
        heads, scale = self.heads, math.sqrt(self.width // self.heads)
        matrices, prior = self.relation.to(rows.dtype), self.prior.to(rows.dtype) / scale

        def attended(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            kinds = edges.relation
            assert kinds is not None
            keys, values = matmul_by_relation(edges.src, kinds, matrices).chunk(2, dim=1)
            dots = (edges.dst * keys).view(-1, heads, keys.shape[1] // heads).sum(-1)
            return dots * prior.index_select(0, kinds), values

        out = graph.message(attended, sent, "softmax", own=queries)
        out = linear_by_type(graph, nn.functional.gelu(out), self.out, self.out_bias)
        if self.skip is not None:
            kept = self.skip.sigmoid().to(out.dtype)[graph.row_types[: graph.num_out]][:, None]
            out = kept * out + (1 - kept) * graph.own(rows)
        return out if out.dtype == x.dtype else out.to(x.dtype)


def _stacked(num_types: int, num_out: int, num_in: int) -> nn.Parameter:
    return nn.Parameter(torch.stack([by_fan_in(num_out, num_in).detach() for _ in range(num_types)]))


def _stacked_biases(num_types: int, num_out: int, num_in: int) -> nn.Parameter:
    biases = [bias_by_fan_in(num_out, num_in) for _ in range(num_types)]
    return nn.Parameter(torch.stack([bias.detach() for bias in biases if bias is not None]))


def _build(config: "ModelConfig", place: Place) -> HGT:
    refuse_untyped("hgt", place.num_types, place.num_relations)
    if config.hidden % config.heads:
        raise UserError(
            f"model hgt lays its {config.heads} heads side by side in the {config.hidden} columns of model.hidden: "
            "choose a multiple of model.heads"
        )
    return HGT(place.num_in, place.num_out, place.num_types, place.num_relations, config.heads, config.hidden)


register_layer("hgt", _build, ["heads"], reducer=lambda config: Traits(unroundable=BIASED_SOFTMAX))
