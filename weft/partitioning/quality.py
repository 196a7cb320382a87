"""How good a partition is: what is cut, what each part needs from others, how even the parts are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.graph.graph import Graph


@dataclass(frozen=True)
class PartCounts:
    """One part in numbers."""

    nodes: int
    edges: int  # in-edges of its vertices
    cut_edges: int  # those that come from another part
    halo: int  # foreign vertices that it needs
    sent: int  # rows that it sends when every part fetches its halo once
    train: int  # training vertices, all splits together


@dataclass(frozen=True)
class Quality:
    """A partition in numbers; balances are the largest part over the mean, 1.0 at best."""

    parts: tuple[PartCounts, ...]

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    @property
    def cut_edges(self) -> int:
        return sum(part.cut_edges for part in self.parts)

    @property
    def cut_fraction(self) -> float:
        return self.cut_edges / max(1, sum(part.edges for part in self.parts))

    @property
    def halo(self) -> int:
        return sum(part.halo for part in self.parts)

    @property
    def vertex_balance(self) -> float:
        return balance([part.nodes for part in self.parts])

    @property
    def edge_balance(self) -> float:
        return balance([part.edges for part in self.parts])

    @property
    def train_balance(self) -> float:
        return balance([part.train for part in self.parts])

    @property
    def replication_factor(self) -> float:
        """Copies of a vertex, its own included, in the mean."""
        nodes = sum(part.nodes for part in self.parts)
        return (nodes + self.halo) / nodes if nodes else 1.0

    def layer_bytes(self, width: int, bytes_per_value: int = 4) -> int:
        """Bytes that one forward pass of one layer sends over all parts (its backward pass sends as many)."""
        return self.halo * width * bytes_per_value

    def rows(self) -> list[tuple[str, str]]:
        """(what, value) lines for a table."""
        return [
            ("parts", str(self.num_parts)),
            ("cut edges", f"{self.cut_edges:,} ({self.cut_fraction:.1%})"),
            ("halo rows", f"{self.halo:,} (largest part {max(part.halo for part in self.parts):,})"),
            ("replication factor", f"{self.replication_factor:.2f}"),
            ("vertex balance", f"{self.vertex_balance:.3f}"),
            ("edge balance", f"{self.edge_balance:.3f}"),
            ("training vertex balance", f"{self.train_balance:.3f}"),
            ("bytes per layer, width 128", f"{self.layer_bytes(128):,} forward, as many back"),
        ]


def balance(counts: list[int]) -> float:
    """The largest over the mean; 1.0 where there is nothing to balance."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 1.0


def quality(graph: Graph, owner: Tensor, num_parts: int) -> Quality:
    """Counts of an assignment (owner: [N] part of each vertex), without cutting the graph."""
    from weft.graph.csr import row_numbers
    from weft.partitioning.shard import check_owner

    check_owner(owner, graph.num_nodes, num_parts)
    owner = owner.to(torch.int32)
    adjacency = graph.adjacency
    nodes = torch.bincount(owner, minlength=num_parts)
    source_part = owner[adjacency.indices.long()]
    target_part = owner[row_numbers(adjacency.indptr)]
    edges = torch.bincount(target_part, minlength=num_parts)
    cut = source_part != target_part
    cut_source, cut_part = adjacency.indices[cut], target_part[cut]
    cut_edges = torch.bincount(cut_part, minlength=num_parts)
    halo, sent = [], torch.zeros(num_parts, dtype=torch.int64)
    for part in range(num_parts):
        marked = torch.zeros(graph.num_nodes, dtype=torch.bool)
        marked[cut_source[cut_part == part].long()] = True
        halo.append(int(marked.sum()))
        sent += torch.bincount(owner[marked], minlength=num_parts)
    train = torch.bincount(owner, weights=train_count(graph), minlength=num_parts).long()
    columns = (nodes.tolist(), edges.tolist(), cut_edges.tolist(), halo, sent.tolist(), train.tolist())
    return Quality(tuple(PartCounts(*numbers) for numbers in zip(*columns, strict=True)))


def train_count(graph: Graph) -> Tensor:
    """In how many splits each vertex is a training vertex, float64 [N] (0 or 1 where there is one split)."""
    mask = graph.train_mask
    if mask is None:
        return torch.zeros(graph.num_nodes, dtype=torch.float64)
    return (mask if mask.dim() == 1 else mask.sum(0)).double()
