"""Edges as their owners drew them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SampledEdges:
    """In-edges of some vertices, as their owners drew them."""

    indptr: Tensor  # int64 [R + 1]
    sources: Tensor  # int32 [S], positions; where only own rows and the halo are meant, numbers of these
    edge_data: dict[str, Tensor]
    facts: dict[str, Tensor]  # of each vertex, [R]: degrees, ids, and where edges have weights, weight_sums, ...
    edge_ids: Tensor | None = None  # int64 [S], index among all in-edges of the only worker, where asked for

    def rows(self, first: int, end: int) -> "SampledEdges":
        """Those of the vertices from `first` up to `end`."""
        low, high = int(self.indptr[first]), int(self.indptr[end])
        return SampledEdges(
            self.indptr[first : end + 1] - low,
            self.sources[low:high],
            {name: data[low:high] for name, data in self.edge_data.items()},
            {name: fact[first:end] for name, fact in self.facts.items()},
            None if self.edge_ids is None else self.edge_ids[low:high],
        )
