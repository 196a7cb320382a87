"""What one worker holds: its own vertices, their in-edges, and which foreign vertices those come from.

Columns of `local` are local ids. Columns of `remote` are halo slots: foreign sources, grouped by owning
worker and, within one, in the order of that worker's rows (so that it reads what it sends in storage order).
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.csr import CSR, filter_csr, invert, rows_ascend, sort_columns, take_columns, take_rows
from weft.graph.graph import Graph
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import HasVertexData, map_columns, select_vertices
from weft.partitioning.order import locality_order, wants_reorder


@dataclass(frozen=True)
class Shard(HasVertexData):
    """N owned vertices and H halo slots of one worker; in-row edges ascend by global source id."""

    worker: int
    num_workers: int
    global_ids: Tensor  # int64 [N], owned, in locality order
    local: CSR  # N rows, N columns
    remote: CSR  # N rows, H columns
    halo_ids: Tensor  # int64 [H] global ids, grouped by owning worker ascending
    halo_counts: tuple[int, ...]  # one per worker
    halo_rows: Tensor  # int64 [H], each one's local id at its owner
    num_global_nodes: int
    num_global_edges: int
    num_classes: int
    graph_name: str
    fingerprint: str
    num_relations: int = 0  # 0: edges are all of one kind
    types: GraphTypes | None = None  # of the graph's vertices; None: they are all of one type

    @property
    def num_nodes(self) -> int:
        return self.global_ids.numel()

    @property
    def num_halo(self) -> int:
        return self.halo_ids.numel()

    @property
    def learned(self) -> Tensor | None:
        """Numbers of own vertices for which a row is learned, int64, since they have no features; None: of none."""
        if self.types is None:
            return None if self.x is not None else torch.arange(self.num_nodes)
        if not self.types.learned:
            return None
        assert self.vertex_type is not None
        featureless = torch.tensor(self.types.widths, device=self.vertex_type.device) == 0
        return featureless[self.vertex_type.long()].nonzero().squeeze(1)

    @property
    def num_outputs(self) -> int:
        """What is predicted of a vertex: a score of each class, or so many numbers; 0: there are no labels."""
        return self.num_classes or self.num_targets

    @property
    def num_edges(self) -> int:
        return self.local.num_edges + self.remote.num_edges

    @property
    def num_edge_features(self) -> int:
        return 0 if self.local.features is None else self.local.features.shape[1]

    def without_times(self) -> "Shard":
        """The same, edges knowing nothing of when they came to be."""
        return replace(self, local=replace(self.local, time=None), remote=replace(self.remote, time=None))

    def to(self, device: torch.device) -> "Shard":
        """The same shard with every tensor on a device."""
        moved: dict[str, Any] = {
            f.name: value.to(device) for f in fields(self) if hasattr(value := getattr(self, f.name), "to")
        }
        return replace(self, **moved, vertex_data=map_columns(lambda rows: rows.to(device), self.vertex_data))

    def remote_from(self, worker: int) -> CSR:
        """In-edges from that worker's rows only; columns count from that worker's first halo slot."""
        first = sum(self.halo_counts[:worker])
        return take_columns(self.remote, slice(first, first + self.halo_counts[worker]))


@dataclass(frozen=True)
class Placement:
    """Where every vertex lives: all vertices in one order, part after part."""

    order: Tensor  # int64 [N] global ids
    position: Tensor  # int64 [N], the inverse: a vertex's local id is its position less its part's start
    starts: tuple[int, ...]  # P + 1 offsets into order

    @property
    def num_parts(self) -> int:
        return len(self.starts) - 1

    def members(self, part: int) -> Tensor:
        return self.order[self.starts[part] : self.starts[part + 1]]


@dataclass(frozen=True)
class Edges:
    """The in-edges of some rows, split into those from inside and those from a halo."""

    local: CSR
    remote: CSR
    halo_ids: Tensor  # int64 [H]
    halo_owners: Tensor  # int64 [H], ascending
    halo_rows: Tensor  # int64 [H], ascending within an owner


def place(graph: Graph, owner: Tensor, num_parts: int, reorder: bool | None = None) -> Placement:
    """Rows of each part in locality order; `reorder` None: where the graph is large enough to gain by it."""
    check_owner(owner, graph.num_nodes, num_parts)
    owner = owner.to(torch.int32)
    order = locality_order(graph.adjacency, reorder)
    order = order[torch.argsort(owner[order], stable=True)]
    counts = torch.bincount(owner, minlength=num_parts)
    return Placement(order, invert(order), (0, *torch.cumsum(counts, 0).tolist()))


def check_owner(owner: Tensor, num_nodes: int, num_parts: int) -> None:
    """Refuses an assignment that does not name one of the parts for each vertex."""
    if num_parts < 1:
        raise UserError(f"{num_parts} parts were asked for: a graph is cut into 1 part or more")
    if owner.shape != (num_nodes,):
        raise UserError(f"the assignment has shape {tuple(owner.shape)}, the graph has {num_nodes} vertices")
    if num_nodes and (int(owner.min()) < 0 or int(owner.max()) >= num_parts):
        low, high = int(owner.min()), int(owner.max())
        raise UserError(f"the assignment names parts {low}..{high}, but there are parts 0..{num_parts - 1}")


def cut_rows(adjacency: CSR, place: Placement, part: int) -> Edges:
    """The in-edges of one part's vertices."""
    first, end = place.starts[part], place.starts[part + 1]
    rows = sort_columns(take_rows(adjacency, place.members(part)))
    source = place.position[rows.indices.long()]
    rows = replace(rows, indices=source)
    foreign = (source < first) | (source >= end)
    inside = filter_csr(rows, ~foreign)
    outside = filter_csr(rows, foreign)
    local = replace(inside, indices=(inside.indices - first).int(), num_cols=end - first)
    # Positions ascend by (owner, local id there), so the marked ones are the halo slots in their order.
    marked = torch.zeros(place.order.numel(), dtype=torch.bool)
    marked[outside.indices] = True
    halo = marked.nonzero().squeeze(1)
    slot = torch.cumsum(marked, 0, dtype=torch.int32) - 1
    remote = replace(outside, indices=slot[outside.indices], num_cols=halo.numel())
    starts = torch.tensor(place.starts)
    owners = torch.searchsorted(starts, halo, right=True) - 1
    return Edges(local, remote, place.order[halo], owners, halo - starts[owners])


def whole_shard(graph: Graph, reorder: bool | None = None) -> Shard:
    """The whole graph on one worker, without files. `reorder` None: where the graph is large enough."""
    if not wants_reorder(graph.adjacency, reorder) and rows_ascend(graph.adjacency):
        local = graph.adjacency
        everything = torch.arange(graph.num_nodes)
        rows: Tensor | None = None  # nothing moves: features are shared, not copied
    else:
        everything = locality_order(graph.adjacency, reorder)
        ordered = sort_columns(take_rows(graph.adjacency, everything))
        local = replace(ordered, indices=invert(everything).int()[ordered.indices.long()])
        rows = everything
    ids = torch.empty(0, dtype=torch.int64)
    none = replace(local.pick(ids, torch.zeros(graph.num_nodes + 1, dtype=torch.int64)), num_cols=0)
    return _shard(graph, 0, 1, everything, rows, Edges(local, none, ids, ids, ids))


def make_shards(graph: Graph, owner: Tensor, num_workers: int, reorder: bool | None = None) -> list[Shard]:
    """Every worker's shard, in memory. owner: [N] the worker of each vertex."""
    placement = place(graph, owner, num_workers, reorder)
    shards = []
    for worker in range(num_workers):
        members = placement.members(worker)
        edges = cut_rows(graph.adjacency, placement, worker)
        shards.append(_shard(graph, worker, num_workers, members, members, edges))
    return shards


def _shard(graph: Graph, worker: int, num_workers: int, members: Tensor, rows: Tensor | None, edges: Edges) -> Shard:
    return Shard(
        worker=worker,
        num_workers=num_workers,
        global_ids=members,
        local=edges.local,
        remote=edges.remote,
        halo_ids=edges.halo_ids,
        halo_counts=tuple(torch.bincount(edges.halo_owners, minlength=num_workers).tolist()),
        halo_rows=edges.halo_rows,
        vertex_data=select_vertices(graph.vertex_data, rows),
        num_global_nodes=graph.num_nodes,
        num_global_edges=graph.num_edges,
        num_classes=graph.num_classes,
        graph_name=graph.name,
        fingerprint=graph.fingerprint,
        num_relations=graph.num_relations,
        types=graph.types,
    )
