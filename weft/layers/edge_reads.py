"""What the layers of a model read of the edges themselves: their features, and weights where these are asked for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.aggregate import EdgeRows, GraphView
from weft.aggregate.reducers import BIASED_SOFTMAX, AttentionDropout
from weft.errors import UserError
from weft.kernels.reference.masks import keep_pairs

WITH_EDGES = f"attention that reads edges makes its logits of the rows themselves: {BIASED_SOFTMAX}"


@dataclass(frozen=True)
class EdgeReads:
    """As it stands, nothing: a layer that knows edges by their ends alone."""

    features: int = 0  # how many of each edge
    weight: bool = False

    def __bool__(self) -> bool:
        return bool(self.features) or self.weight

    @property
    def names(self) -> frozenset[str]:
        """Those of EDGE_DATA that are read."""
        return frozenset([*(["features"] if self.features else []), *(["weight"] if self.weight else [])])

    @property
    def num_columns(self) -> int:
        return self.features + self.weight

    def columns(self, edges: EdgeRows) -> Tensor:
        """Features and weight side by side, [E, F]: to attention a weight is one more feature."""
        found = [] if edges.features is None or not self.features else [edges.features]
        if self.weight and edges.weight is not None:
            found.append(edges.weight.to(found[0].dtype if found else edges.weight.dtype).unsqueeze(1))
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def check(self, graph: GraphView, layer: object) -> None:
        """Refuses a graph whose edges do not carry this."""
        shard, name = graph.shard, type(layer).__name__
        if self.features and shard.num_edge_features != self.features:
            raise UserError(
                f"{name} reads {self.features} features of each edge, and edges of {shard.graph_name} have "
                f"{shard.num_edge_features or 'none'}: ingest it with --edge-features, or build the layer without"
            )
        if self.weight and shard.local.weight is None:
            raise UserError(
                f"{name} reads edge weights, and edges of {shard.graph_name} have none: ingest it with "
                "--weight-column, or build the layer without"
            )


NO_READS = EdgeReads()


def dropped(edges: EdgeRows, values: Tensor, heads: int, dropout: AttentionDropout | None) -> Tensor:
    """Values [E, H*D] of which whole heads are dropped and the others scaled up: as if their coefficients were."""
    if dropout is None:
        return values
    kept = keep_pairs(edges.dst_ids, edges.src_ids, heads, dropout.p, dropout.key).to(values.dtype)
    by_head = values.view(-1, heads, values.shape[1] // heads)
    return (by_head * (kept / (1.0 - dropout.p)).unsqueeze(2)).flatten(1)
