"""A graph with vertices attached is the graph that would have been made of all edges at once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from tests.graph.test_interop import same
from weft.errors import UserError

pandas = pytest.importorskip("pandas")
OLD, NEW = 20, 6


def drawn(seed: int, ids: bool, weighted: bool, relations: bool, undirected: bool) -> tuple[weft.Graph, ...]:
    """A graph of OLD + NEW vertices; the same without the last ones; both frames that attach these."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(OLD + NEW, size=(2, 90))
    x = rng.random((OLD + NEW, 3)).astype(np.float32)
    names = np.array([f"v{k}" for k in rng.permutation(OLD + NEW)])
    weight = rng.random(90).astype(np.float32) if weighted else None
    kind = np.array(["likes", "knows"])[rng.integers(2, size=90)] if relations else None
    features = rng.random((90, 2)).astype(np.float32) if weighted else None

    def graph(edges: np.ndarray, nodes: int) -> weft.Graph:
        return weft.from_edges(
            names[src[edges]] if ids else src[edges],
            names[dst[edges]] if ids else dst[edges],
            ids=names[:nodes] if ids else None,
            x=x[:nodes],
            y=np.arange(nodes) % 3,
            train_mask=np.ones(nodes, np.bool_),
            weight=None if weight is None else weight[edges],
            relation=None if kind is None else kind[edges],
            relation_names=None if kind is None else ["knows", "likes"],
            edge_features=None if features is None else features[edges],
            undirected=undirected,
        )

    old = (src < OLD) & (dst < OLD)
    columns = {"from": names[src] if ids else src, "to": names[dst] if ids else dst}
    columns |= {} if weight is None else {"weight": weight, "f0": features[:, 0], "f1": features[:, 1]}
    columns |= {} if kind is None else {"relation": kind}
    nodes = {"id": names[OLD:] if ids else np.arange(OLD, OLD + NEW), **{f"x{k}": x[OLD:, k] for k in range(3)}}
    return graph(np.arange(90), OLD + NEW), graph(np.flatnonzero(old), OLD), pandas.DataFrame(columns)[~old], (
        pandas.DataFrame(nodes)
    )  # fmt: skip


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize(("weighted", "relations"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("undirected", [True, False])
def test_attached_vertices_are_as_if_they_had_been_there(
    tmp_path: Path, ids: bool, weighted: bool, relations: bool, undirected: bool
) -> None:
    whole, old, edges, nodes = drawn(0, ids, weighted, relations, undirected)
    more = {"edge_features": ["f0", "f1"]} if weighted else {}
    found = weft.attach(old, edges, nodes, undirected=undirected, **more)
    y, mask = whole.y.clone(), whole.train_mask.clone()
    y[OLD:], mask[OLD:] = -1, False
    same(found, whole.with_vertex_data(y=y, train_mask=mask))
    edges.to_csv(tmp_path / "edges.csv", index=False)
    nodes.to_parquet(tmp_path / "nodes.parquet")
    files = tmp_path / "edges.csv", tmp_path / "nodes.parquet"
    same(weft.attach(old, *files, undirected=undirected, **more), found)


@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_to_predict_of_new_vertices_are_unknown(targets: int) -> None:
    _, old, edges, nodes = drawn(3, True, False, False, True)
    y = torch.rand(OLD, targets).squeeze(1)
    old = replace(old.with_vertex_data(y=y), num_classes=0)
    found = weft.attach(old, edges, nodes, undirected=True)
    assert found.num_targets == targets and torch.equal(found.y[:OLD], y)
    assert bool(found.y[OLD:].isnan().all())


def test_ids_that_do_not_follow_are_kept() -> None:
    _, old, _, _ = drawn(1, False, False, False, False)
    edges = pandas.DataFrame({"from": [3, 900], "to": [900, 4]})
    nodes = pandas.DataFrame({"id": [900], "a": [1.0], "b": [2.0], "c": [3.0]})
    found = weft.attach(old, edges, nodes)
    assert found.original_ids.tolist() == [*range(OLD), 900]
    assert found.adjacency.degrees()[OLD] == 1 and torch.equal(found.x[OLD], torch.tensor([1.0, 2.0, 3.0]))
    text = replace(old, original_ids=np.array([f"v{k}" for k in range(OLD)]))
    mixed = weft.attach(text, edges.assign(**{"from": ["v3", "900"], "to": ["900", "v4"]}), nodes)
    assert mixed.original_ids.tolist()[-1] == "900"


def test_what_does_not_fit_is_named() -> None:
    _, old, edges, nodes = drawn(2, True, True, True, False)
    more = {"edge_features": ["f0", "f1"]}
    for frames, message in (
        ((edges, nodes.drop(columns="x1")), r"has 2 features for the new vertices and those of graph 'graph' have 3"),
        ((edges, nodes.replace(nodes["id"][0], old.original_ids[0])), r"is a vertex of graph 'graph' already"),
        ((edges.drop(columns="weight"), nodes), r"of graph 'graph' have weight and those of the edge frame have none"),
        ((edges.drop(columns="relation"), nodes), r"has relations: give the edges of the edge frame theirs"),
        ((edges.replace("likes", "loves"), nodes), r"unknown relation 'loves'"),
        ((edges, nodes[["id"]]), r"the node frame has no features"),
        ((edges, nodes.drop(columns="id").reset_index(drop=True)), r"the node frame has no ids"),
        ((edges.assign(**{"to": "nobody"}), nodes), r"'nobody' is not among"),
    ):
        with pytest.raises(UserError, match=message):
            weft.attach(old, *frames, **more)
    plain = drawn(2, True, False, False, False)[1]
    with pytest.raises(UserError, match=r"the edges of the edge frame have relations and graph 'graph' has none"):
        weft.attach(plain, edges.drop(columns="weight"), nodes)
    with pytest.raises(
        UserError, match=r"the edges of the edge frame have weight and those of graph 'graph' have none"
    ):
        weft.attach(plain, edges.drop(columns="relation"), nodes)
