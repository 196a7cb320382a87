"""What layers with attention share: heads side by side or averaged."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.layers.edge_reads import WITH_EDGES, EdgeReads
from weft.layers.layer import Layer
from weft.layers.registry import Place
from weft.layers.traits import LayerTraits

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


class MultiHead(Layer):
    """Heads side by side ([N, H*D]) or, with `concat=False`, their mean ([N, D])."""

    def __init__(
        self,
        num_in: int,
        num_head_out: int,
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        use_bias: bool = True,
        edge_dim: int = 0,
        edge_weight: bool = False,
    ) -> None:
        """`edge_dim`: how many features of edges it reads; `edge_weight`: it reads their weights as one more."""
        super().__init__()
        self.heads, self.width, self.concat, self.dropout = heads, num_head_out, concat, dropout
        self.num_out = heads * num_head_out if concat else num_head_out
        self.edges = EdgeReads(edge_dim, edge_weight)
        self.make_parameters(num_in, use_bias)
        if self.edges:
            self.make_edge_parameters(self.edges.num_columns)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        """All parameters but those of edges, the bias of the output too."""
        raise TypeError(f"{type(self).__name__} does not say which parameters it has")

    def make_edge_parameters(self, num_columns: int) -> None:
        """Those that turn what edges carry into parts of logits or values."""
        raise TypeError(f"{type(self).__name__} does not say what it makes of edges")

    def merge(self, out: Tensor) -> Tensor:
        if self.concat or self.heads == 1:
            return out
        return out.view(-1, self.heads, self.width).mean(1)


def traits_with_edges(plain: LayerTraits) -> property:
    """What a layer with heads declares: `plain`, and what it reads of edges where it does."""

    def traits(layer: MultiHead) -> LayerTraits:
        if not layer.edges:
            return plain
        return replace(plain, edge_data=layer.edges.names, unroundable=WITH_EDGES)

    return property(traits)


def wide(rows: Tensor) -> Tensor:
    """Softmax wants more than bf16 holds."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def heads_at(config: "ModelConfig", place: Place) -> int:
    """How many heads a model's layer has."""
    return config.output_heads if place.last else config.heads
