"""Pairs that are no edges: of each own vertex, which other vertices have no edge to it."""

from functools import cached_property

import torch
from torch import Tensor

from weft.graph.csr import row_numbers
from weft.partitioning import Shard


class NonEdges:
    """The vertices that own ones have no edge with, themselves left out, in the order of their global ids.

    All edges count, so they are those of a shard from which none is held out. One is found by its number among them,
    so that a number drawn evenly is a vertex drawn evenly, however many edges there are.
    """

    def __init__(
        self,
        shard: Shard,
        edges: tuple[Tensor, Tensor] | None = None,
        more: tuple[Tensor, Tensor] | None = None,
        candidates: Tensor | None = None,
    ) -> None:
        """`edges`: own rows and the global ids at the other ends; None: the in-edges of the shard. `more` are counted
        as edges beside them. `candidates`: global ids, ascending, of the vertices that pairs are made with; None: all.
        """
        own = torch.arange(shard.num_nodes)
        self._candidates = candidates
        self._total = shard.num_global_nodes if candidates is None else candidates.numel()
        rows, ids = in_edges(shard) if edges is None else edges
        parts = [(own, shard.global_ids), (rows, ids), *([] if more is None else [more])]
        taken = torch.unique(torch.cat([self._numbered(rows, ids) for rows, ids in parts]))
        row = taken // max(self._total, 1)
        counts = torch.bincount(row, minlength=shard.num_nodes)
        self._starts = torch.cumsum(counts, 0) - counts
        self._free_before = taken - (torch.arange(taken.numel()) - self._starts[row])  # how many below, in each row
        self.counts = self._total - counts  # int64 [N]

    def _numbered(self, rows: Tensor, ids: Tensor) -> Tensor:
        """One number of each pair; pairs with others than candidates are left out."""
        if self._candidates is None:
            return rows * self._total + ids
        place, found = self._place(ids)
        return rows[found] * self._total + place[found]

    def _place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The number of each vertex among the candidates, and whether it is one."""
        if self._candidates is None:
            return ids, torch.ones_like(ids, dtype=torch.bool)
        if not self._total:
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        place = torch.searchsorted(self._candidates, ids).clamp(max=self._total - 1)
        return place, self._candidates[place] == ids

    def find(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Global ids of those with these numbers, each below its row's count."""
        taken_before = torch.searchsorted(self._free_before, rows * self._total + numbers, right=True)
        found: Tensor = numbers + taken_before - self._starts[rows]
        return found if self._candidates is None else self._candidates[found]

    def have(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Which of these pairs are no edges, and of a vertex and another one that is a candidate, bool."""
        place, free = self._place(ids)
        wanted = rows * self._total + place
        at = torch.searchsorted(self._taken, wanted)
        inside = at < self._taken.numel()
        free[inside] &= self._taken[at[inside]] != wanted[inside]
        return free

    @cached_property
    def _taken(self) -> Tensor:
        """The numbers of pairs that are edges, ascending."""
        row = torch.repeat_interleave(torch.arange(self.counts.numel()), self._total - self.counts)
        keys: Tensor = self._free_before + torch.arange(row.numel()) - self._starts[row]
        return keys


def in_edges(shard: Shard) -> tuple[Tensor, Tensor]:
    """Own rows, and the global ids of the vertices that edges lead from to them."""
    rows = torch.cat([row_numbers(shard.local.indptr), row_numbers(shard.remote.indptr)])
    ids = [shard.global_ids[shard.local.indices.long()], shard.halo_ids[shard.remote.indices.long()]]
    return rows, torch.cat(ids)
