"""What a graph is: in-edges as CSR, and what vertices carry."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from weft.graph.csr import CSR
from weft.graph.preparation.schema import Preparation
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import HasVertexData


@dataclass(frozen=True)
class Graph(HasVertexData):
    """A directed graph of N vertices; an edge u -> v is stored in v's row and carries u's message to v.

    Features, labels, splits and whatever else vertices carry are `vertex_data`, by name.

    >>> graph = weft.load("synthetic:tiny")
    >>> graph.num_nodes, graph.num_features, graph.num_classes, tuple(graph.x.shape)
    (300, 16, 4, (300, 16))
    """

    adjacency: CSR
    num_classes: int = 0
    name: str = "graph"
    original_ids: np.ndarray[Any, np.dtype[Any]] | None = None  # [N] integers or strings; None: 0..N-1
    class_names: tuple[str, ...] | None = None  # of classes, or of the numbers that are to be predicted
    num_relations: int = 0  # 0: edges are all of one kind
    relation_names: tuple[str, ...] | None = None
    preparation: Preparation | None = None  # how the features came out of a file; None: nobody knows
    types: GraphTypes | None = None  # of vertices; None: they are all of one type
    meta: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = {"vertices": self.num_nodes, "edges": self.num_edges}
        counts |= {"features": self.num_features, "classes": self.num_classes}
        counts |= {"numbers to predict": self.num_targets, "relations": self.num_relations}
        counts |= {} if self.types is None else {"types": len(self.types.vertices)}
        said = [f"{count:,} {what}" for what, count in counts.items() if count or what in ("vertices", "edges")]
        said += [f"split {'/'.join(self.masks)}"] if self.masks else []
        return f"Graph({self.name!r}: {', '.join(said)})"

    @property
    def num_nodes(self) -> int:
        return self.adjacency.num_rows

    @property
    def num_edges(self) -> int:
        return self.adjacency.num_edges

    @property
    def fingerprint(self) -> str:
        return self.adjacency.fingerprint

    @property
    def num_edge_features(self) -> int:
        return 0 if self.adjacency.features is None else self.adjacency.features.shape[1]

    @property
    def id_column(self) -> str | None:
        """What the user's own files call the ids of vertices, where they had a column of them."""
        name = self.meta.get("id_column")
        return name if isinstance(name, str) else None

    @property
    def dates(self) -> tuple[str, ...]:
        """Of what the times are dates: "edges", "vertices"."""
        named = self.meta.get("dates")
        return tuple(map(str, named)) if isinstance(named, list | tuple) else ()

    @property
    def multi_label(self) -> bool:
        return self.y is not None and self.y.dim() == 2 and not self.num_targets

    def with_vertex_data(self, **columns: Tensor | None) -> Self:
        """The same with these columns instead of those of the same names; None removes one."""
        changed = super().with_vertex_data(**columns)
        if not (changed.num_classes or changed.num_targets):
            changed = replace(changed, class_names=None)  # of numbers that are gone
        return replace(changed, preparation=None) if "x" in columns else changed
