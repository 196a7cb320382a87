"""What layers with attention share: heads side by side or averaged."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.layers.layer import Layer
from weft.layers.registry import Place

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
    ) -> None:
        super().__init__()
        self.heads, self.width, self.concat, self.dropout = heads, num_head_out, concat, dropout
        self.num_out = heads * num_head_out if concat else num_head_out
        self.make_parameters(num_in, use_bias)

    def make_parameters(self, num_in: int, use_bias: bool) -> None:
        """All parameters, the bias of the output too."""
        raise TypeError(f"{type(self).__name__} does not say which parameters it has")

    def merge(self, out: Tensor) -> Tensor:
        if self.concat or self.heads == 1:
            return out
        return out.view(-1, self.heads, self.width).mean(1)


def wide(rows: Tensor) -> Tensor:
    """Softmax wants more than bf16 holds."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def heads_at(config: "ModelConfig", place: Place) -> int:
    """How many heads a model's layer has."""
    return config.output_heads if place.last else config.heads
