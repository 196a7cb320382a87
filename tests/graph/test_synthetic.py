"""Synthetic graphs: what is asked for is what comes, and a neighbourhood says more than a vertex."""

import numpy as np
import pytest
import scipy.sparse
import torch

from weft.errors import UserError
from weft.graph import Graph, describe, open_graph, synthetic


def test_the_same_seed_gives_the_same_graph_and_another_seed_another() -> None:
    one, two, other = synthetic("tiny"), synthetic("tiny"), synthetic("tiny", seed=1)
    assert one.fingerprint == two.fingerprint != other.fingerprint
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(one, name), getattr(two, name))
        assert not torch.equal(getattr(one, name), getattr(other, name))


def test_counts_are_exact() -> None:
    graph = open_graph("synthetic:demo?nodes=3000,edges=14_000,features=7,classes=5,communities=30")
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (3000, 28_000, 7, 5)
    found = describe(graph)
    assert found.undirected and found.self_loops == 0 and found.duplicate_edges == 0
    assert found.splits == ({"train": 1620, "val": 540, "test": 840, "overlap": 0},)
    assert set(graph.y.tolist()) == set(range(5))  # type: ignore[union-attr]


def test_fewer_nodes_keep_the_shape_of_the_preset() -> None:
    graph = synthetic("arxiv", nodes=5000)
    assert graph.num_edges == 2 * round(1_166_243 * 5000 / 169_343)
    assert (graph.num_features, graph.num_classes) == (128, 40)


@pytest.mark.parametrize("homophily", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("label_noise", [0.0, 0.1])
def test_homophily_is_what_was_asked(homophily: float, label_noise: float) -> None:
    graph = synthetic("demo", nodes=5000, homophily=homophily, label_noise=label_noise)
    assert describe(graph).homophily == pytest.approx(homophily, abs=0.03)


def test_the_degree_law_has_the_exponent_asked_for() -> None:
    """Maximum likelihood (Hill) on the tail of the degrees."""
    for exponent in (2.3, 3.0):
        graph = synthetic("community", nodes=30_000, exponent=exponent, homophily=0.3, degree=20)
        degree = np.sort(graph.adjacency.degrees().numpy())[-600:].astype(float)
        estimate = 1 + 1 / np.mean(np.log(degree / degree[0]))
        assert estimate == pytest.approx(exponent, abs=0.35)


def test_numbers_of_vertices_say_nothing_about_communities() -> None:
    graph = synthetic("community", nodes=4000)
    row = np.repeat(np.arange(4000), graph.adjacency.degrees().numpy())
    distance = np.abs(row - graph.adjacency.indices.numpy())
    assert distance.mean() == pytest.approx(4000 / 3, rel=0.05)  # as for two random vertices


def test_directed_and_weighted() -> None:
    graph = synthetic("tiny", directed=True, weighted=True)
    assert graph.num_edges == 1200 and not describe(graph).undirected
    assert graph.adjacency.weight is not None and float(graph.adjacency.weight.min()) >= 0.5


def accuracy_of_a_linear_model(x: np.ndarray, graph: Graph) -> float:
    """Ridge regression onto one-hot labels: a fair comparison of both inputs, and quick."""
    assert graph.y is not None and graph.train_mask is not None and graph.test_mask is not None
    y, train, test = graph.y.numpy(), graph.train_mask.numpy(), graph.test_mask.numpy()
    x = (x - x.mean(0)) / x.std(0)
    x = np.concatenate([x, np.ones((x.shape[0], 1))], axis=1).astype(np.float64)
    weight = np.linalg.solve(
        x[train].T @ x[train] + np.eye(x.shape[1]), x[train].T @ np.eye(graph.num_classes)[y[train]]
    )
    return float(((x[test] @ weight).argmax(1) == y[test]).mean())


@pytest.mark.parametrize("preset", ["demo", "arxiv"])
def test_the_neighbourhood_clearly_beats_the_vertex(preset: str) -> None:
    graph = synthetic(preset, nodes=6000)
    assert graph.x is not None
    ones = np.ones(graph.num_edges, np.float32)
    adjacency = scipy.sparse.csr_matrix(
        (ones, graph.adjacency.indices.numpy(), graph.adjacency.indptr.numpy()), shape=(6000, 6000)
    ) + scipy.sparse.eye(6000, dtype=np.float32)
    scale = scipy.sparse.diags(np.asarray(adjacency.sum(1)).ravel() ** -0.5)
    walk = (scale @ adjacency @ scale).astype(np.float32)
    alone = accuracy_of_a_linear_model(graph.x.numpy(), graph)
    together = accuracy_of_a_linear_model(walk @ (walk @ graph.x.numpy()), graph)
    assert 0.2 < alone < 0.5
    assert 0.6 < together < 0.85
    assert together > alone + 0.25


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("synthetic:arxv", "did you mean 'arxiv'?"),
        ("synthetic:tiny?nods=10", "did you mean 'nodes'?"),
        ("synthetic:tiny?nodes=ten", "write nodes=VALUE"),
        ("synthetic:tiny?nodes", "write nodes=VALUE"),
        ("synthetic:tiny?directed=perhaps", "write directed=VALUE"),
        ("synthetic:tiny?exponent=1.5", "more than 2"),
        ("synthetic:tiny?homophily=2", "not in 0..1"),
        ("synthetic:tiny?communities=2", "communities"),
        ("synthetic:tiny?edges=40000", "too dense"),
        ("synthetic:tiny?nodes=1", "at least 2 nodes"),
        ("synthetic:tiny?train=0.9,val=0.5", "impossible"),
    ],
)
def test_bad_specs_are_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        open_graph(spec)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_setting_in_python() -> None:
    with pytest.raises(UserError, match="did you mean 'noise'"):
        synthetic("tiny", nois=1)
