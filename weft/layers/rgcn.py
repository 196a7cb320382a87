"""R-GCN (Schlichtkrull et al. 2018): X W_root + sum over relations r of mean(neighbours by r) W_r + b."""

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.layers.layer import Layer
from weft.layers.linear import bias, linear, weight


class RGCN(Layer):
    """With `bases` B > 0 the relations share B matrices: W_r = sum over b of coefficients[r, b] V_b."""

    def __init__(self, num_in: int, num_out: int, num_relations: int, bases: int = 0, use_bias: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out, self.num_relations = num_in, num_out, num_relations
        self.root = weight(num_out, num_in)
        matrices = [weight(num_out, num_in).detach() for _ in range(bases or num_relations)]
        self.neighbour = nn.Parameter(torch.cat(matrices, dim=1))  # [out, R * in], or [out, B * in]
        self.coefficients = weight(num_relations, bases) if bases else None  # [R, B]
        self.bias = bias(num_out, use_bias)

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
