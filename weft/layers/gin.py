"""GIN (Xu et al. 2019): MLP((1 + eps) X + sum of neighbours), eps learned."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.layer import NATIVE, Layer, weight_first
from weft.layers.linear import linear
from weft.layers.norm import BatchNorm
from weft.layers.registry import register_layer


class GIN(Layer):
    traits = replace(NATIVE, input_aggregate=("sum", None))

    def __init__(self, num_in: int, num_out: int, use_bias: bool = True, batch_norm: bool = True) -> None:
        super().__init__()
        self.num_in, self.num_out = num_in, num_out
        self.eps = nn.Parameter(torch.zeros(()))
        self.first = by_fan_in(num_out, num_in)
        self.first_bias = bias_by_fan_in(num_out, num_in)
        self.norm = BatchNorm(num_out) if batch_norm else None
        self.second = by_fan_in(num_out, num_out)
        self.bias = bias_by_fan_in(num_out, num_out, use_bias)

    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        own = (1 + self.eps).to(x.dtype)
        if weight_first(graph, x, self.num_in, self.num_out):
            messages = linear(x, self.first)
            hidden = graph.aggregate(messages, "sum", into=own * graph.own(messages))
        else:
            hidden = linear(graph.aggregate(x, "sum") + own * graph.own(x), self.first)
        if self.norm is None:
            hidden = graph.relu_dropout_(hidden, self.first_bias, 0.0)
        else:
            assert self.first_bias is not None
            hidden = torch.relu(self.norm(graph, hidden + self.first_bias.to(hidden.dtype)))
        return linear(hidden, self.second)


register_layer("gin", lambda config, place: GIN(place.num_in, place.num_out))
