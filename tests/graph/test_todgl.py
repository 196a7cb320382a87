"""Graphs to DGL and back, where DGL is installed: `pip install --no-deps dgl==1.1.3`."""

from typing import Any

import pytest
import torch

import weft
from tests.graph.test_interop import same
from tests.graph.typed import COUNTS, RELATIONS, WIDTHS, hetero

dgl: Any = pytest.importorskip("dgl", reason="DGL is not installed", exc_type=ImportError)


def equal(found: weft.Graph, wanted: weft.Graph) -> None:
    same(found, wanted)
    assert found.adjacency.edge_data.keys() == wanted.adjacency.edge_data.keys()
    for name, rows in wanted.adjacency.edge_data.items():
        assert torch.equal(found.adjacency.edge_data[name], rows), name


@pytest.mark.parametrize("relations", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_graph_of_one_type_comes_back(relations: bool, splits: int) -> None:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 40, (2, 200), generator=generator)
    role = torch.randint(0, 3, (splits, 41), generator=generator)
    masks = {f"{name}_mask": role == number for number, name in enumerate(("train", "val", "test"))}
    graph = weft.from_edges(
        src, dst, num_nodes=41, x=torch.rand(41, 3), y=torch.arange(41) % 4,
        weight=torch.rand(200), edge_features=torch.rand(200, 2), edge_time=torch.rand(200), vertex_time=torch.rand(41),
        relation=torch.arange(200) % 3 if relations else None,
        **{name: mask if splits > 1 else mask[0] for name, mask in masks.items()},
    )  # fmt: skip
    theirs = weft.to_dgl(graph)
    assert theirs.num_nodes() == 41 and theirs.num_edges() == 200
    assert theirs.ndata["feat"].shape == (41, 3) and theirs.edata["feat"].shape == (200, 2)
    assert theirs.ndata["train_mask"].shape == ((41, 3) if splits > 1 else (41,))
    weighted = theirs.adj_external(scipy_fmt="coo")  # rows are sources, of DGL's own making
    assert sorted(zip(weighted.row.tolist(), weighted.col.tolist(), strict=True)) == sorted(
        zip(src.tolist(), dst.tolist(), strict=True)
    )
    equal(weft.from_dgl(theirs), graph)


def test_a_mean_over_neighbours_is_that_of_dgl() -> None:
    graph = weft.load("synthetic:tiny")
    theirs = weft.to_dgl(graph)
    theirs.update_all(dgl.function.copy_u("feat", "m"), dgl.function.mean("m", "out"))
    with weft.open_part(graph).exact_pass() as view:
        ours = view.aggregate(graph.x, reduce="mean")
    torch.testing.assert_close(ours, theirs.ndata["out"])


def test_what_a_graph_lacks_dgl_lacks() -> None:
    theirs = weft.to_dgl(weft.from_edges([0, 1], [1, 2]))
    assert not theirs.ndata and not theirs.edata
    equal(weft.from_dgl(theirs), weft.from_edges([0, 1], [1, 2]))


def test_a_graph_of_several_types_comes_back() -> None:
    data = hetero()
    for number, (triple, count) in enumerate(RELATIONS.items()):
        data[triple].edge_weight = torch.rand(count) + number
        data[triple].edge_attr = torch.rand(count, 2)
        data[triple].time = torch.rand(count)
    data["user"].node_time = torch.rand(COUNTS["user"])
    graph = weft.from_pyg(data)
    theirs = weft.to_dgl(graph)
    assert set(theirs.ntypes) == set(COUNTS) and set(theirs.canonical_etypes) == set(RELATIONS)
    for kind, count in COUNTS.items():
        assert theirs.num_nodes(kind) == count
        assert ("feat" in theirs.nodes[kind].data) == (WIDTHS[kind] > 0)
        if WIDTHS[kind]:
            assert torch.equal(theirs.nodes[kind].data["feat"], data[kind].x)
    assert torch.equal(theirs.nodes["user"].data["label"], data["user"].y)
    assert torch.equal(theirs.nodes["user"].data["val_mask"], data["user"].val_mask)
    assert "time" not in theirs.nodes["item"].data
    for triple in RELATIONS:
        held, edges = theirs.edges[triple].data, theirs.edges(etype=triple)
        found = zip(*(end.tolist() for end in edges), held["weight"].tolist(), held["time"].tolist(), strict=True)
        ends, weight, time = data[triple].edge_index, data[triple].edge_weight, data[triple].time
        wanted = zip(*ends.tolist(), weight.tolist(), time.double().tolist(), strict=True)
        assert sorted(found) == sorted(wanted)
    back = weft.from_dgl(theirs)  # types and relations are ordered by their names
    assert back.types is not None and back.types.names == tuple(sorted(COUNTS))
    again = weft.from_dgl(weft.to_dgl(back))
    same(again.with_vertex_data(time=None), back.with_vertex_data(time=None))
    torch.testing.assert_close(again.time, back.time, rtol=0, atol=0, equal_nan=True)
    assert again.types == back.types
