"""What one worker holds: its own vertices, their in-edges, and which foreign vertices those come from.

Columns of `local` are local ids. Columns of `remote` are halo slots: foreign sources, grouped by owning
worker and, within one, in the order of that worker's rows (so that it reads what it sends in storage order).
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.graph import CSR, Graph
from weft.partition.order import locality_order, wants_reorder


@dataclass(frozen=True)
class Shard:
    """N owned vertices and H halo slots of one worker; in-row edges ascend by global source id."""

    worker: int
    num_workers: int
    global_ids: Tensor  # int64 [N], owned, in locality order
    local: CSR  # N rows, N columns
    remote: CSR  # N rows, H columns
    halo_ids: Tensor  # int64 [H] global ids, grouped by owning worker ascending
    halo_counts: tuple[int, ...]  # one per worker
    halo_rows: Tensor  # int64 [H], each one's local id at its owner
    x: Tensor | None  # [N, F]
    y: Tensor | None  # [N] or [N, C]
    train_mask: Tensor | None  # bool [N] or [S, N]
    val_mask: Tensor | None
    test_mask: Tensor | None
    num_global_nodes: int
    num_global_edges: int
    num_classes: int
    graph_name: str
    fingerprint: str
    num_relations: int = 0  # 0: edges are all of one kind

    @property
    def num_nodes(self) -> int:
        return self.global_ids.numel()

    @property
    def num_halo(self) -> int:
        return self.halo_ids.numel()

    @property
    def num_edges(self) -> int:
        return self.local.num_edges + self.remote.num_edges

    def to(self, device: torch.device) -> "Shard":
        """The same shard with every tensor on a device."""
        moved = {f.name: value.to(device) for f in fields(self) if hasattr(value := getattr(self, f.name), "to")}
        return replace(self, **moved)

    def remote_block(self, worker: int) -> CSR:
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
    owner = check_owner(owner, graph.num_nodes, num_parts)
    order = locality_order(graph.adjacency, reorder)
    order = order[torch.argsort(owner[order], stable=True)]
    counts = torch.bincount(owner, minlength=num_parts)
    return Placement(order, invert(order), (0, *torch.cumsum(counts, 0).tolist()))


def check_owner(owner: Tensor, num_nodes: int, num_parts: int) -> Tensor:
    if num_parts < 1:
        raise UserError(f"{num_parts} parts were asked for: a graph is cut into 1 part or more")
    if owner.shape != (num_nodes,):
        raise UserError(f"the assignment has shape {tuple(owner.shape)}, the graph has {num_nodes} vertices")
    if num_nodes and (int(owner.min()) < 0 or int(owner.max()) >= num_parts):
        low, high = int(owner.min()), int(owner.max())
        raise UserError(f"the assignment names parts {low}..{high}, but there are parts 0..{num_parts - 1}")
    return owner.to(torch.int32)


def cut_rows(adjacency: CSR, place: Placement, part: int) -> Edges:
    """The in-edges of one part's vertices."""
    first, end = place.starts[part], place.starts[part + 1]
    block = take_rows(adjacency, place.members(part))
    source = place.position[block.indices.long()]
    block = replace(block, indices=source)
    foreign = (source < first) | (source >= end)
    inside = filter_csr(block, ~foreign)
    outside = filter_csr(block, foreign)
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
        block = take_rows(graph.adjacency, everything)
        local = replace(block, indices=invert(everything).int()[block.indices.long()])
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
        x=select(graph.x, rows),
        y=select(graph.y, rows),
        train_mask=select(graph.train_mask, rows, dim=-1),
        val_mask=select(graph.val_mask, rows, dim=-1),
        test_mask=select(graph.test_mask, rows, dim=-1),
        num_global_nodes=graph.num_nodes,
        num_global_edges=graph.num_edges,
        num_classes=graph.num_classes,
        graph_name=graph.name,
        fingerprint=graph.fingerprint,
        num_relations=graph.num_relations,
    )


def select(rows: Tensor | None, index: Tensor | None, dim: int = 0) -> Tensor | None:
    if rows is None or index is None:
        return rows
    return rows.index_select(dim, index)


def invert(permutation: Tensor) -> Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(permutation.numel())
    return inverse


def sort_pairs(major: Tensor, minor: Tensor) -> Tensor:
    """The order that sorts by (major, minor); stable."""
    if major.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    width = int(minor.max()) + 1
    assert (int(major.max()) + 1) * width < 2**63
    return torch.argsort(major * width + minor, stable=True)


def row_numbers(indptr: Tensor) -> Tensor:
    """The row of every edge, int64 [E]."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr[1:] - indptr[:-1])


def rows_ascend(csr: CSR) -> bool:
    """Whether the columns of every row ascend (they do in an ingested graph)."""
    if csr.num_edges < 2:
        return True
    descends = csr.indices[1:] < csr.indices[:-1]
    starts = csr.indptr[1:-1]
    starts = starts[(starts > 0) & (starts < csr.num_edges)]
    descends[starts - 1] = False  # from one row to the next anything goes
    return not bool(descends.any())


def take_rows(csr: CSR, rows: Tensor) -> CSR:
    """The given rows in the given order, columns unchanged but ascending within each row."""
    block = pick_rows(csr, rows)
    return block if rows_ascend(block) else sort_rows(block, block.indices.long())


def pick_rows(csr: CSR, rows: Tensor) -> CSR:
    """The given rows in the given order, each as it is."""
    degrees = csr.degrees()[rows]
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    torch.cumsum(degrees, 0, out=indptr[1:])
    total = int(indptr[-1])
    # position of edge k: where its row starts in the whole, plus its number within the row
    position = torch.repeat_interleave(csr.indptr[:-1][rows] - indptr[:-1], degrees) + torch.arange(total)
    return csr.pick(position, indptr)


def sort_rows(csr: CSR, key: Tensor) -> CSR:
    """Edges of every row in the order of their key (int64 [E]); stable, so multi-edges keep their order."""
    return csr.pick(sort_pairs(row_numbers(csr.indptr), key))


def filter_csr(csr: CSR, keep: Tensor) -> CSR:
    """The edges for which keep (bool [E]) holds, in the same rows."""
    before = torch.zeros(csr.num_edges + 1, dtype=torch.int64, device=keep.device)
    torch.cumsum(keep, 0, out=before[1:])
    return csr.pick(keep, before[csr.indptr])


def take_columns(csr: CSR, chosen: slice) -> CSR:
    """The edges whose column lies in a span, which is counted from its start."""
    if chosen == slice(0, csr.num_cols):
        return csr
    keep = (csr.indices >= chosen.start) & (csr.indices < chosen.stop)
    block = filter_csr(csr, keep)
    return replace(block, indices=block.indices - chosen.start, num_cols=chosen.stop - chosen.start)
