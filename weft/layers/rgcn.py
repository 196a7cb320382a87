"""R-GCN (Schlichtkrull et al. 2018): X W_root + sum over relations r of mean(neighbours by r) W_r + b."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.errors import UserError
from weft.layers.initial import glorot, zeros
from weft.layers.layer import NATIVE, Layer
from weft.layers.linear import linear
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class RGCN(Layer):
    """With `bases` B > 0 the relations share B matrices: W_r = sum over b of coefficients[r, b] V_b."""

    traits = replace(NATIVE, by_relation=True, edge_data=frozenset(["relation"]))

    def __init__(self, num_in: int, num_out: int, num_relations: int, bases: int = 0, use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out, self.num_relations = num_in, num_out, num_relations
        self.root = glorot(num_out, num_in)
        matrices = [glorot(num_out, num_in).detach() for _ in range(bases or num_relations)]
        self.neighbour = nn.Parameter(torch.cat(matrices, dim=1))  # [out, R * in], or [out, B * in]
        self.coefficients = glorot(num_relations, bases) if bases else None  # [R, B]
        self.bias = zeros(num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        # Aggregates first: rows of width `in` travel once, whatever the number of relations.
        rows = graph.aggregate(x, "mean", by="relation")
        return linear(rows, self._matrices(), into=linear(graph.own(x), self.root))

    def _matrices(self) -> Tensor:
        """W_r of all relations side by side, [out, R * in]."""
        if self.coefficients is None:
            return self.neighbour
        shared = self.neighbour.view(self.num_out, -1, self.num_in)
        return torch.einsum("obi,rb->ori", shared, self.coefficients).flatten(1)


def _build(config: "ModelConfig", place: Place) -> RGCN:
    if place.num_relations == 0:
        raise UserError(
            "model rgcn learns from edges of several relations, but this graph has one kind of edges: ingest it with "
            "--relation-column, or use another model"
        )
    return RGCN(place.num_in, place.num_out, place.num_relations, config.bases)


register_layer("rgcn", _build, options=["bases"])
