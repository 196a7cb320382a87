"""Graphs of networkx, scipy and data frames are those of the same edges and tables, and mistakes are named."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
import torch

import weft
from weft.errors import UserError
from weft.graph import Graph, as_graph

networkx = pytest.importorskip("networkx")
pandas = pytest.importorskip("pandas")


def same(left: Graph, right: Graph) -> None:
    """The same edges, vertex data, ids and names."""
    assert left.fingerprint == right.fingerprint
    assert left.vertex_data.keys() == right.vertex_data.keys()
    for name, rows in left.vertex_data.items():
        assert torch.equal(rows, right.vertex_data[name]), name
    assert (left.original_ids is None) == (right.original_ids is None)
    assert left.original_ids is None or left.original_ids.tolist() == right.original_ids.tolist()
    assert (left.class_names, left.relation_names) == (right.class_names, right.relation_names)


def random_edges(seed: int = 0, nodes: int = 20, edges: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(nodes, size=edges), rng.integers(nodes, size=edges)


@pytest.mark.parametrize("directed", [True, False])
def test_networkx_graphs_are_their_edges(directed: bool) -> None:
    src, dst = random_edges()
    rng = np.random.default_rng(1)
    names, weight = [f"v{k}" for k in range(20)], rng.random(60)
    kind = networkx.MultiDiGraph if directed else networkx.MultiGraph
    theirs = kind()
    x, y = rng.random((20, 3)).astype(np.float32), ["even" if k % 2 == 0 else "odd" for k in range(20)]
    splits = ["train", "val", "test", ""] * 5
    for k, name in enumerate(names):
        theirs.add_node(name, x=x[k], label=y[k], split=splits[k])
    for u, v, w in zip(src, dst, weight, strict=True):
        theirs.add_edge(names[u], names[v], weight=w, kind="up" if u < v else "down")
    ours = weft.from_networkx(theirs, relation="kind")
    listed = list(theirs.edges(data=True))  # an undirected one may turn edges round
    expected = weft.from_edges(
        [u for u, _, _ in listed],
        [v for _, v, _ in listed],
        ids=np.array(names),
        x=x,
        y=[k % 2 for k in range(20)],
        class_names=["even", "odd"],
        weight=[held["weight"] for _, _, held in listed],
        relation=[held["kind"] for _, _, held in listed],
        undirected=not directed,
        **{f"{role}_mask": [split == role for split in splits] for role in ("train", "val", "test")},
    )
    same(ours, expected)
    assert ours.num_edges == (60 if directed else 120 - int((src == dst).sum()))


def test_networkx_nodes_of_other_kinds_and_missing_attributes() -> None:
    grid = networkx.grid_2d_graph(2, 2)
    assert weft.from_networkx(grid).original_ids.tolist() == ["(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"]
    path = networkx.path_graph(3)
    assert weft.from_networkx(path).original_ids is None
    path.nodes[0]["y"] = 1
    assert weft.from_networkx(path).y.tolist() == [1, -1, -1]
    path.nodes[1]["a"] = 0.5
    with pytest.raises(UserError, match="vertex 0 has no 'a'"):
        weft.from_networkx(path, features=["a"])
    with pytest.raises(UserError, match=r"unknown vertex attribute 'b'"):
        weft.from_networkx(path, features="b")
    both = networkx.Graph([(1, "1")])
    with pytest.raises(UserError, match=r"the nodes 1 and '1' have the same text"):
        weft.from_networkx(both)


def test_scipy_matrices_are_their_entries() -> None:
    src, dst = random_edges()
    rng = np.random.default_rng(2)
    weight, x = rng.random(60) + 0.5, scipy.sparse.random(20, 5, 0.3, format="csr", random_state=0)
    matrix = scipy.sparse.coo_array((weight, (src, dst)), shape=(20, 20))
    for given in (matrix, matrix.toarray(), scipy.sparse.csc_matrix(matrix)):
        summed = scipy.sparse.coo_array(given) if given is not matrix else matrix
        expected = weft.from_edges(summed.coords[0], summed.coords[1], num_nodes=20, weight=summed.data, x=x.toarray())
        same(weft.from_scipy(given, x=x), expected)
    assert weft.from_scipy(matrix, weighted=False).adjacency.weight is None
    assert weft.from_scipy(matrix != 0).adjacency.weight is None
    with pytest.raises(UserError, match=r"shape \[2, 3\]: give one that is square"):
        weft.from_scipy(np.ones((2, 3)))


def frames() -> tuple["pandas.DataFrame", "pandas.DataFrame"]:
    src, dst = random_edges()
    rng = np.random.default_rng(3)
    ids = np.array([f"n{k:02d}" for k in range(20)])
    edges = pandas.DataFrame({"from": ids[src], "to": ids[dst], "weight": rng.random(60)})
    nodes = pandas.DataFrame(
        {
            "id": ids,
            "age": rng.integers(90, size=20),
            "income": rng.random(20),
            "topic": pandas.Categorical(np.array(["art", "law"])[rng.integers(2, size=20)]),
            "split": np.array(["train", "val", "test"])[np.arange(20) % 3],
        }
    )
    return edges, nodes


def test_frames_are_the_files_that_they_would_be(tmp_path: Path) -> None:
    edges, nodes = frames()
    edges.to_csv(tmp_path / "edges.csv", index=False)
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    options = {"label_columns": ["topic"], "undirected": True}
    expected = weft.ingest(tmp_path / "edges.csv", features=tmp_path / "nodes.csv", **options)
    found = weft.from_pandas(edges, nodes, **options)
    same(found, expected)
    assert found.meta["source"] == "pandas" and found.name == "pandas"
    same(weft.from_pandas(edges, nodes.set_index("id"), **options), expected)
    unnamed = nodes.set_index("id").rename_axis(None)
    same(weft.from_pandas(edges, unnamed, **options), expected)
    kept = edges[edges["weight"] > 0.5]  # its index has gaps, and says nothing
    assert weft.from_pandas(kept, nodes, **options).num_edges <= 2 * len(kept)
    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in (edges, nodes))
    same(weft.from_pandas(*tables, **options), expected)


def test_mistakes_in_frames_name_the_frame_and_the_argument() -> None:
    edges, nodes = frames()
    for frame, message in (
        (
            edges.rename(columns={"from": "a", "to": "b"}),
            r"^the edge frame has the columns .* src_column= and dst_column=",
        ),
        (edges.replace("n03", "n99"), r"of the edge frame points outside the graph: 'n99'"),
    ):
        with pytest.raises(UserError, match=message):
            weft.from_pandas(frame, nodes, label_columns=["topic"])
    with pytest.raises(UserError, match="the node frame has an index of several levels"):
        weft.from_pandas(edges, nodes.set_index(["id", "age"]))
    with pytest.raises(UserError, match="the edge frame is no table of plain columns"):
        weft.from_pandas([("a", "b")])


def test_what_stands_for_a_graph() -> None:
    data = pytest.importorskip("torch_geometric.data")
    given = data.Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 1]))

    class Mine(data.Data):
        pass

    for of_pyg in (given, Mine.from_dict(given.to_dict())):
        same(as_graph(of_pyg), weft.from_pyg(given))
    graph = weft.load("synthetic:tiny")
    assert as_graph(graph) is graph and as_graph("synthetic:tiny").fingerprint == graph.fingerprint
    assert as_graph(networkx.path_graph(3)).num_edges == 4
    with pytest.raises(UserError, match=r"a builtins.list is no graph that weft knows"):
        as_graph([1, 2])


def test_a_graph_says_in_one_line_what_it_is() -> None:
    said = "Graph('synthetic-tiny': 300 vertices, 2,400 edges, 16 features, 4 classes, split train/val/test)"
    assert repr(weft.load("synthetic:tiny")) == said
    assert repr(weft.from_edges([0], [1])) == "Graph('graph': 2 vertices, 1 edges)"
