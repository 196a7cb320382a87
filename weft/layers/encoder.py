"""What stands before the layers where vertices are of several types: rows of one width, from features of each type."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.graph.typedrows import TypedRows
from weft.layers.initial import bias_by_fan_in, by_fan_in
from weft.layers.learned_columns import LearnedColumn, LearnedColumns, width_of


class TypeEncoder(nn.Module):
    """A linear map of its own for the features of each type; learned rows are taken as they are.

    Where features have learned columns, rows of these come into their place before the map.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_out: int,
        columns: Sequence[Sequence[LearnedColumn]] = (),
        column_width: int = 1,
    ) -> None:
        """`widths`: the features of each type; 0: its rows are learned. `columns`: the learned ones of each type."""
        super().__init__()
        self.widths, self.num_out = tuple(widths), num_out
        self.weights = nn.ParameterDict()
        self.biases = nn.ParameterDict()
        self.columns = nn.ModuleDict()
        for kind, learned in enumerate(columns):
            if learned:
                self.columns[str(kind)] = LearnedColumns(learned, widths[kind], column_width)
        for kind, num_features in enumerate(self.widths):
            width = width_of(columns[kind] if columns else (), num_features, column_width)
            if width:
                bias = bias_by_fan_in(num_out, width)
                assert bias is not None
                self.weights[str(kind)], self.biases[str(kind)] = by_fan_in(num_out, width), bias

    def forward(self, x: TypedRows) -> Tensor:
        """[N, num_out]."""
        pieces, order = [], []
        for kind, (members, rows) in enumerate(x.groups):
            if self.widths[kind]:
                weight, bias = self.weights[str(kind)].to(x.dtype), self.biases[str(kind)].to(x.dtype)
                rows = self.columns[str(kind)](rows) if str(kind) in self.columns else rows
                rows = nn.functional.linear(rows.to(x.dtype), weight, bias)
            elif rows.shape[1] != self.num_out:
                continue  # nobody has learned rows, and no vertex is of this type
            pieces.append(rows.to(x.dtype))
            order.append(members)
        if len(order) == 1:
            return pieces[0]
        back = torch.empty(len(x), dtype=torch.int64, device=x.types.device)
        back[torch.cat(order)] = torch.arange(len(x), device=x.types.device)
        return torch.cat(pieces).index_select(0, back)


class Encoded(nn.Module):
    """A model of a user's own behind an encoder."""

    def __init__(self, model: nn.Module, encoder: TypeEncoder) -> None:
        super().__init__()
        self.model, self.encoder = model, encoder
        self.embedding: nn.Parameter | None = None

    def forward(self, graph: GraphView, x: TypedRows) -> Tensor:
        out: Tensor = self.model(graph, self.encoder(x))
        return out
