"""Drawn graphs, and a slow, obvious way to read edges back out of shards."""

from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from weft.graph.csr import CSR
from weft.graph.graph import Graph
from weft.graph.vertexdata import present
from weft.partitioning.shard import Shard

RELATIONS = 3
Edge = tuple[int, int, tuple[float, ...]]  # source and destination by global id, and what the edge carries


def graph_of(
    num_nodes: int,
    edges: list[tuple[int, int]],
    weighted: bool,
    features: int = 3,
    relations: int = RELATIONS,
    edge_features: int = 2,
) -> Graph:
    """Edges (source, destination); the weight of edge k is k + 1, so that every edge can be told apart."""
    numbers = sorted((dst, src, k) for k, (src, dst) in enumerate(edges))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.add.at(indptr, np.array([d + 1 for d, _, _ in numbers], np.int64), 1)
    number = torch.tensor([k for _, _, k in numbers], dtype=torch.int64)
    adjacency = CSR(
        torch.from_numpy(np.cumsum(indptr)),
        torch.tensor([s for _, s, _ in numbers], dtype=torch.int32),
        num_nodes,
        number + 1.0 if weighted else None,
        (number * 7 % 5 % relations).to(torch.int16) if relations else None,
        (number[:, None] / 8 - torch.arange(edge_features)).float() if edge_features else None,
    )
    generator = torch.Generator().manual_seed(num_nodes)
    train = torch.rand(num_nodes, generator=generator) < 0.5
    return Graph(
        adjacency,
        vertex_data=present(
            {
                "x": torch.randn(num_nodes, features, generator=generator) if features else None,
                "y": torch.randint(-1, 4, (num_nodes,), generator=generator),
                "train_mask": train,
                "val_mask": ~train,
                "test_mask": torch.stack([train, ~train]),  # two public splits
                "timestamp": torch.randint(2**40, (num_nodes,), generator=generator),  # which weft itself does not read
                "table": torch.rand(num_nodes, 2, generator=generator).double(),
            }
        ),
        num_classes=4,
        name="drawn",
        num_relations=relations,
    )


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 14) -> Graph:
    """Directed, with self-loops, multi-edges and isolated vertices; one vertex or none at all, too."""
    num_nodes = draw(st.integers(0, max_nodes))
    vertex = st.integers(0, max(0, num_nodes - 1))
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=40 if num_nodes else 0))
    return graph_of(
        num_nodes,
        edges,
        draw(st.booleans()),
        features=draw(st.sampled_from([0, 3])),
        relations=draw(st.sampled_from([0, RELATIONS])),
        edge_features=draw(st.sampled_from([0, 2])),
    )


@st.composite
def cut_graphs(draw: st.DrawFn, max_parts: int = 5) -> tuple[Graph, Tensor, int]:
    """A graph, the part of every vertex (parts may be empty and unequal) and the number of parts."""
    graph = draw(graphs())
    parts = draw(st.integers(1, max_parts))
    owner = draw(st.lists(st.integers(0, parts - 1), min_size=graph.num_nodes, max_size=graph.num_nodes))
    return graph, torch.tensor(owner, dtype=torch.int32), parts


def graph_edges(graph: Graph) -> list[Edge]:
    ids = torch.arange(graph.num_nodes)
    return csr_edges(graph.adjacency, ids, ids)


def csr_edges(csr: CSR, row_ids: Tensor, col_ids: Tensor) -> list[Edge]:
    """Every edge in global ids, in storage order."""
    assert csr.num_rows == row_ids.numel() and csr.num_cols == col_ids.numel()
    assert csr.indptr.dtype == torch.int64 and csr.indices.dtype == torch.int32
    assert csr.relation is None or csr.relation.dtype == torch.int16
    return [
        (int(col_ids[csr.indices[k]]), int(row_ids[row]), carried(csr, k))
        for row in range(csr.num_rows)
        for k in range(int(csr.indptr[row]), int(csr.indptr[row + 1]))
    ]


def carried(csr: CSR, edge: int) -> tuple[float, ...]:
    return tuple(value for data in csr.edge_data.values() for value in data[edge].reshape(-1).tolist())


def check_shards(graph: Graph, shards: list[Shard]) -> None:
    """Everything that must hold of a set of shards, whatever cut them."""
    seen: Counter[Edge] = Counter()
    owned: list[int] = []
    for worker, shard in enumerate(shards):
        assert (shard.worker, shard.num_workers) == (worker, len(shards))
        owned += shard.global_ids.tolist()
        local = csr_edges(shard.local, shard.global_ids, shard.global_ids)
        remote = csr_edges(shard.remote, shard.global_ids, shard.halo_ids)
        seen.update(local + remote)
        for edges in (local, remote):  # in-row order ascends by global source id
            for (source, row, _), (next_source, next_row, _) in pairwise(edges):
                assert row != next_row or source <= next_source
        check_halo(shard, shards)
        check_sources(shard, remote)
        check_rows(graph, shard)
    assert sorted(owned) == list(range(graph.num_nodes))
    assert seen == Counter(graph_edges(graph))


def check_halo(shard: Shard, shards: list[Shard]) -> None:
    assert len(shard.halo_counts) == len(shards) and shard.halo_counts[shard.worker] == 0
    assert sum(shard.halo_counts) == shard.halo_ids.numel() == shard.halo_rows.numel()
    assert len(set(shard.halo_ids.tolist())) == shard.num_halo, "a foreign vertex has one slot"
    assert sorted(set(shard.remote.indices.tolist())) == list(range(shard.num_halo)), "no slot is unused"
    owners = [worker for worker, count in enumerate(shard.halo_counts) for _ in range(count)]
    for slot, owner in enumerate(owners):
        assert shards[owner].global_ids[shard.halo_rows[slot]] == shard.halo_ids[slot]
        if slot and owners[slot - 1] == owner:
            assert shard.halo_rows[slot - 1] < shard.halo_rows[slot]


def check_sources(shard: Shard, remote: list[Edge]) -> None:
    """The edges from each other worker are together the remote edges, each once."""
    union: Counter[Edge] = Counter()
    first = 0
    for worker, count in enumerate(shard.halo_counts):
        ids = shard.halo_ids[first : first + count]
        edges = csr_edges(shard.remote_from(worker), shard.global_ids, ids)
        sources = set(ids.tolist())
        assert edges == [edge for edge in remote if edge[0] in sources]
        union.update(edges)
        first += count
    assert union == Counter(remote)


def check_rows(graph: Graph, shard: Shard) -> None:
    ids = shard.global_ids
    assert list(shard.vertex_data) == list(graph.vertex_data)
    for name, whole in graph.vertex_data.items():
        mine = shard.vertex_data[name]
        assert mine.dtype == whole.dtype
        expected = whole[..., ids] if name.endswith("mask") else whole[ids]
        torch.testing.assert_close(mine, expected, rtol=0, atol=0, equal_nan=True)  # NaN: a time that is not known
    assert (shard.num_global_nodes, shard.num_global_edges) == (graph.num_nodes, graph.num_edges)
    assert (shard.num_classes, shard.graph_name) == (graph.num_classes, graph.name)
    assert shard.num_relations == graph.num_relations
    for csr in (shard.local, shard.remote):
        assert csr.edge_data.keys() == graph.adjacency.edge_data.keys()


def same_shard(first: Shard, second: Shard) -> None:
    """Equal field by field, bit by bit."""
    assert (first.worker, first.num_workers, first.halo_counts) == (
        second.worker,
        second.num_workers,
        second.halo_counts,
    )
    assert first.vertex_data.keys() == second.vertex_data.keys()
    pairs = [(name, getattr(first, name), getattr(second, name)) for name in ("global_ids", "halo_ids", "halo_rows")]
    pairs += [(name, rows, second.vertex_data[name]) for name, rows in first.vertex_data.items()]
    for name, one, two in pairs:
        assert one.dtype == two.dtype and torch.equal(one, two), name
    for name in ("local", "remote"):
        one, two = getattr(first, name), getattr(second, name)
        assert one.num_cols == two.num_cols
        assert torch.equal(one.indptr, two.indptr) and torch.equal(one.indices, two.indices)
        assert one.edge_data.keys() == two.edge_data.keys()
        for kind, data in one.edge_data.items():
            assert data.dtype == two.edge_data[kind].dtype and torch.equal(data, two.edge_data[kind]), kind
    for name in ("num_global_nodes", "num_global_edges", "num_classes", "graph_name", "fingerprint", "num_relations"):
        assert getattr(first, name) == getattr(second, name)
