"""R-GCN (Schlichtkrull et al. 2018): X W_root + sum over relations r of mean(neighbours by r) W_r + b."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.errors import UserError
from weft.layers.initial import glorot, zeros
from weft.layers.kinds import linear_by_type
from weft.layers.layer import NATIVE, Layer
from weft.layers.linear import linear
from weft.layers.registry import Place, register_layer

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class RGCN(Layer):
    """With `bases` B > 0 the relations share B matrices: W_r = sum over b of coefficients[r, b] V_b.

    With `num_types` > 0 every type of vertices has a root and a bias of its own, as where each relation has a GraphSAGE
    layer and a vertex adds up what those of its in-edges give (PyG's HeteroConv of SAGEConv).
    """

    traits = replace(NATIVE, by_relation=True, edge_data=frozenset(["relation"]))

    def __init__(
        self,
        num_in: int,
        num_out: int,
        num_relations: int,
        bases: int = 0,
        use_bias: bool = True,
        num_types: int = 0,
    ) -> None:
        super().__init__()
        self.num_in, self.num_out, self.num_relations, self.num_types = num_in, num_out, num_relations, num_types
        if num_types:
            roots = [glorot(num_out, num_in).detach() for _ in range(num_types)]
            self.root = nn.Parameter(torch.stack(roots))  # [T, out, in]
        else:
            self.root = glorot(num_out, num_in)
        matrices = [glorot(num_out, num_in).detach() for _ in range(bases or num_relations)]
        self.neighbour = nn.Parameter(torch.cat(matrices, dim=1))  # [out, R * in], or [out, B * in]
        self.coefficients = glorot(num_relations, bases) if bases else None  # [R, B]
        self.type_bias = nn.Parameter(torch.zeros(num_types, num_out)) if num_types and use_bias else None
        self.bias = None if num_types else zeros(num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        # Aggregates first: rows of width `in` travel once, whatever the number of relations.
        rows = graph.aggregate(x, "mean", by="relation")
        if self.num_types:
            own = linear_by_type(graph, graph.own(x), self.root, self.type_bias)
        else:
            own = linear(graph.own(x), self.root)
        return linear(rows, self._matrices(), into=own)

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
            "--relation-column or as graph.yaml, or use another model"
        )
    return RGCN(place.num_in, place.num_out, place.num_relations, config.bases, num_types=place.num_types)


register_layer("rgcn", _build, options=["bases"])
