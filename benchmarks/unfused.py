"""GAT written with `graph.message`, as a user would without a fused kernel: a model for benchmarks.sequential."""

import torch
from torch import Tensor, nn

from weft.aggregate import EdgeRows, GraphView
from weft.layers import ModelConfig, Stack


class MessageGAT(nn.Module):
    def __init__(self, num_in: int, num_head_out: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, num_head_out
        self.lin = nn.Linear(num_in, heads * num_head_out, bias=False)
        self.source = nn.Parameter(torch.randn(heads, num_head_out) / num_head_out**0.5)
        self.target = nn.Parameter(torch.randn(heads, num_head_out) / num_head_out**0.5)
        self.bias = nn.Parameter(torch.zeros(heads * num_head_out))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        def attend(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            at_src, at_dst = (rows.view(-1, self.heads, self.width) for rows in (edges.src, edges.dst))
            logits = (at_src * self.source).sum(-1) + (at_dst * self.target).sum(-1)
            return nn.functional.leaky_relu(logits, 0.2), edges.src

        return graph.message(attend, self.lin(x), reduce="softmax") + self.bias


def gat(num_in: int, num_out: int, config: ModelConfig) -> nn.Module:
    widths = [num_in, *[config.heads * config.hidden] * (config.layers - 1)]
    layers: list[nn.Module] = [MessageGAT(width, config.hidden, config.heads) for width in widths[:-1]]
    layers.append(MessageGAT(widths[-1], num_out, 1))
    return Stack(layers, config)
