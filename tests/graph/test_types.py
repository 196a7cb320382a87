"""Graphs of several types of vertices: their blocks of features in files, parts and shards, and back to PyG."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.graph.typed import COUNTS, RELATIONS, WIDTHS, hetero
from tests.sample.cases import spread
from weft.errors import UserError
from weft.graph import from_edges, from_pyg, load_graph, save_graph, to_undirected
from weft.graph.check import check_graph
from weft.graph.topyg import to_pyg
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import concat_vertices, select_vertices
from weft.partitioning import Shard, load_shard, make_shards, whole_shard, write_partition


def wide_and_narrow() -> "tuple[object, int]":
    """A few vertices with many features and many with few, and the bytes that these take."""
    data = hetero()
    data["item"].x = torch.randn(COUNTS["item"], 400)
    return data, 4 * (COUNTS["item"] * 400 + COUNTS["user"] * WIDTHS["user"])


def features_by_id(shard: Shard) -> dict[int, list[float]]:
    """Each own vertex's features; of a type without any, none."""
    assert shard.types is not None and shard.vertex_type is not None
    found: dict[int, list[float]] = {}
    for kind in range(len(shard.types.vertices)):
        x, members = shard.features_of(kind), (shard.vertex_type == kind).nonzero().squeeze(1)
        for row, vertex in enumerate(shard.global_ids[members].tolist()):
            found[vertex] = [] if x is None else x[row].tolist()
    return found


def test_features_take_the_bytes_of_their_own_widths(tmp_path: Path) -> None:
    data, wanted = wide_and_narrow()
    graph = from_pyg(data)
    assert sum(rows.nbytes for name, rows in graph.vertex_data.items() if name.startswith("x_of_")) == wanted
    save_graph(graph, tmp_path / "graph")
    assert sum(file.stat().st_size - 128 for file in (tmp_path / "graph").glob("x_of_*.npy")) == wanted
    write_partition(graph, spread(graph.num_nodes, 3), tmp_path / "parts", 3)
    assert sum(file.stat().st_size - 128 for file in (tmp_path / "parts").rglob("x_of_*.npy")) == wanted


def test_graph_folders_keep_types(tmp_path: Path) -> None:
    graph = from_pyg(hetero())
    save_graph(graph, tmp_path / "graph")
    loaded = load_graph(tmp_path / "graph", verify=True)
    assert loaded.types == graph.types and loaded.fingerprint == graph.fingerprint
    assert loaded.vertex_data.keys() == graph.vertex_data.keys()
    assert all(torch.equal(loaded.vertex_data[name], rows) for name, rows in graph.vertex_data.items())
    assert repr(loaded).count("3 types") == 1


@pytest.mark.parametrize("num_workers", [1, 3])
def test_every_vertex_keeps_its_features(num_workers: int, tmp_path: Path) -> None:
    graph = from_pyg(wide_and_narrow()[0])
    wanted = features_by_id(whole_shard(graph, reorder=False))
    assert len(wanted) == graph.num_nodes and len(wanted[COUNTS["user"]]) == 400
    owner = spread(graph.num_nodes, 4)
    write_partition(graph, owner, tmp_path / "parts", 4)
    for shards in (
        make_shards(graph, spread(graph.num_nodes, num_workers), num_workers),
        [load_shard(tmp_path / "parts", worker, num_workers) for worker in range(num_workers)],
    ):
        found = {vertex: row for shard in shards for vertex, row in features_by_id(shard).items()}
        assert found == wanted
        assert sum(0 if shard.learned is None else len(shard.learned) for shard in shards) == COUNTS["tag"]
        assert all(shard.types == graph.types for shard in shards)


def test_vertices_are_picked_and_joined() -> None:
    graph = from_pyg(hetero())
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    pieces = [select_vertices(graph.vertex_data, order[:20]), select_vertices(graph.vertex_data, order[20:])]
    together = concat_vertices(pieces)
    back = select_vertices(together, torch.argsort(order))
    assert all(torch.equal(back[name], rows) for name, rows in graph.vertex_data.items())


def test_damaged_types_are_refused(tmp_path: Path) -> None:
    graph = from_pyg(hetero())
    save_graph(graph, tmp_path / "graph")
    file = tmp_path / "graph" / "vertex_type.npy"
    kinds = np.load(file)
    kinds[:] = 7
    np.save(file, kinds)
    with pytest.raises(UserError, match="vertex_type"):
        load_graph(tmp_path / "graph", verify=True)


def test_types_that_do_not_fit_are_refused() -> None:
    graph = from_pyg(hetero())
    assert graph.types is not None
    with pytest.raises(UserError, match="one type after another"):
        check_graph(graph.with_vertex_data(vertex_type=graph.vertex_type.flip(0)))  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"type 'item' has features \[20, 2\], not \[20, 3\]"):
        check_graph(graph.with_vertex_data(x_of_1=torch.zeros(20, 2)))
    with pytest.raises(UserError, match="features of 'user' have NaN or infinite values, first in row 3"):
        x = graph.features_of(0).clone()  # type: ignore[union-attr]
        x[3] = torch.nan
        check_graph(graph.with_vertex_data(x_of_0=x))
    fewer = GraphTypes(vertices=graph.types.vertices[:2], ends=graph.types.ends, target=0)
    with pytest.raises(UserError, match="leads between types that are not there"):
        check_graph(replace(graph, types=fewer))
    with pytest.raises(UserError, match="cannot be called 'vertex_type'"):
        from_edges([0], [1], vertex_data={"vertex_type": [0, 1]})


def test_mistakes_in_hetero_data_are_named() -> None:
    data = hetero()
    data["item", "has", "tag"].edge_index[1, 0] = 99
    with pytest.raises(UserError, match="'item has tag' name vertex 99 of type 'tag', which has 9"):
        from_pyg(data)
    data = hetero()
    data["user", "likes", "song"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(UserError, match="song"):
        from_pyg(data)


def test_edges_may_run_both_ways() -> None:
    graph = to_undirected(from_pyg(hetero()))
    check_graph(graph)
    assert graph.types is not None and graph.types.ends[5:] == ((1, 0), (0, 1), (0, 0), (2, 1), (1, 2))
    assert graph.types.reverses == tuple((relation, relation + 5) for relation in range(5))
    kinds = graph.types.of(graph.adjacency.indices.long())
    assert graph.adjacency.relation is not None
    assert torch.equal(kinds, torch.tensor(graph.types.ends)[graph.adjacency.relation.long(), 0])


def test_pyg_gets_back_what_it_gave() -> None:
    data = hetero()
    generator = torch.Generator().manual_seed(2)
    for triple, count in RELATIONS.items():
        data[triple].edge_weight = torch.rand(count, generator=generator)
    graph = from_pyg(data)
    back = to_pyg(graph)
    assert back.node_types == data.node_types and back.edge_types == data.edge_types
    for kind in data.node_types:
        assert back[kind].num_nodes == COUNTS[kind] and set(back[kind].keys()) == set(data[kind].keys())
        assert all(torch.equal(back[kind][name], rows) for name, rows in data[kind].items() if name != "num_nodes")
    for triple in data.edge_types:
        pairs = [sorted(zip(*one[triple].edge_index.tolist(), one[triple].edge_weight.tolist(), strict=True))
                 for one in (data, back)]  # fmt: skip
        assert pairs[0] == pairs[1]
    again = from_pyg(back)
    assert again.fingerprint == graph.fingerprint and again.types == graph.types
