"""Edges of several kinds, and edges with features: every way in, reverses, duplicates, and one sentence per mistake."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from weft.cli.show import graph_rows
from weft.errors import UserError
from weft.graph import describe, from_dgl, from_edges, from_pyg, ingest, load_npz, open_graph, synthetic, to_undirected
from weft.graph.graph import Graph

SRC, DST = np.array([4, 1, 1, 0, 4]), np.array([0, 0, 0, 4, 4])
KIND = np.array(["owns", "owns", "knows", "knows", "owns"])
FEATURES = np.array([[1, 0.5], [2, 0.25], [3, 0], [4, -1], [5, 8]], np.float32)
EXPECTED = sorted(
    (int(u), int(v), str(kind), *map(float, row)) for u, v, kind, row in zip(SRC, DST, KIND, FEATURES, strict=True)
)


def edges_of(graph: Graph) -> list[tuple[object, ...]]:
    """(source, destination, relation's name, features...) in original ids."""
    csr = graph.adjacency
    ids = np.arange(graph.num_nodes) if graph.original_ids is None else graph.original_ids
    names = graph.relation_names or range(graph.num_relations)
    rows = np.repeat(np.arange(graph.num_nodes), csr.degrees().numpy())
    assert csr.relation is not None and csr.relation.dtype == torch.int16
    features = torch.empty(csr.num_edges, 0) if csr.features is None else csr.features
    return sorted(
        (int(ids[u]), int(ids[v]), names[int(kind)], *row)
        for u, v, kind, row in zip(csr.indices.tolist(), rows, csr.relation, features.tolist(), strict=True)
    )


def write(path: Path, kind: np.ndarray, features: np.ndarray = FEATURES, named: str = "relation") -> Path:
    table = pa.table({"src": SRC, "dst": DST, named: kind, "a": features[:, 0], "b": features[:, 1]})
    match path.suffix:
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case ".parquet":
            pq.write_table(table, path)
        case ".npz":
            np.savez(path, src=SRC, dst=DST, a=features[:, 0], b=features[:, 1], **{named: kind})
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_every_format_gives_relations_and_edge_features(suffix: str, tmp_path: Path) -> None:
    graph = ingest(write(tmp_path / f"e.{suffix}", KIND), edge_features=("a", "b"))
    assert graph.relation_names == ("knows", "owns") and graph.num_edge_features == 2
    assert edges_of(graph) == EXPECTED
    other = ingest(
        write(tmp_path / f"o.{suffix}", KIND, named="how"), relation_column="how", edge_features=("a", "b"), name="e"
    )
    assert other.fingerprint == graph.fingerprint
    assert ingest(tmp_path / f"o.{suffix}").num_relations == 0, "a column of another name is not guessed at"


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_numbers_of_relations_stand_for_themselves_where_none_is_missing(suffix: str, tmp_path: Path) -> None:
    graph = ingest(write(tmp_path / f"e.{suffix}", np.array([2, 0, 1, 0, 2])))
    assert graph.num_relations == 3 and graph.relation_names is None
    sparse = ingest(write(tmp_path / f"s.{suffix}", np.array([279, 31, 31, 31, 1000])))
    assert sparse.relation_names == ("31", "279", "1000")
    assert [name for *_, name in edges_of(sparse)].count("31") == 3


def test_a_column_that_is_asked_for_as_something_else_is_no_relation(tmp_path: Path) -> None:
    graph = ingest(write(tmp_path / "e.csv", np.array([2, 0, 1, 0, 2])), edge_features=("relation", "a"))
    assert graph.num_relations == 0 and graph.num_edge_features == 2


def test_relations_and_features_beside_an_npy_edge_list(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.stack([SRC, DST]))
    np.save(tmp_path / "kind.npy", KIND)
    np.save(tmp_path / "features.npy", FEATURES)
    files = {"relation_column": str(tmp_path / "kind.npy"), "edge_features": (str(tmp_path / "features.npy"),)}
    assert edges_of(ingest(tmp_path / "e.npy", **files)) == EXPECTED
    np.save(tmp_path / "features.npy", FEATURES[:-1])
    with pytest.raises(UserError, match="one row per edge"):
        ingest(tmp_path / "e.npy", **files)


def test_a_whole_npz_graph(tmp_path: Path) -> None:
    arrays = {"edge_index": np.stack([SRC, DST]), "relation": [1, 1, 0, 0, 1], "relation_names": ["knows", "owns"]}
    np.savez(tmp_path / "g.npz", num_nodes=5, edge_features=FEATURES, **arrays)
    assert edges_of(load_npz(tmp_path / "g.npz")) == edges_of(ingest(tmp_path / "g.npz")) == EXPECTED


@pytest.mark.parametrize("lately", [False, True], ids=["at-once", "afterwards"])
def test_the_reverse_of_a_relation_is_a_relation_of_its_own(lately: bool) -> None:
    options = {"relation": KIND, "edge_features": FEATURES}
    graph = (
        to_undirected(from_edges(SRC, DST, **options)) if lately else from_edges(SRC, DST, undirected=True, **options)
    )  # type: ignore[arg-type]
    assert graph.relation_names == ("knows", "owns", "knows (reverse)", "owns (reverse)")
    back = [(v, u, f"{kind} (reverse)", *row) for u, v, kind, *row in EXPECTED if u != v]
    assert edges_of(graph) == sorted([*EXPECTED, *back])
    numbered = from_edges([0], [1], relation=[1], undirected=True)
    assert numbered.relation_names == ("0", "1", "0 (reverse)", "1 (reverse)")


def test_edges_of_different_relations_are_no_duplicates() -> None:
    graph = from_edges([0, 0, 0, 0], [1, 1, 1, 1], relation=[1, 0, 1, 0], weight=[1, 2, 3, 4], drop_duplicates=True)
    assert graph.adjacency.relation.tolist() == [0, 1]  # type: ignore[union-attr]
    assert graph.adjacency.weight.tolist() == [2, 1]  # type: ignore[union-attr]
    twice = from_edges([0, 0, 0], [1, 1, 1], relation=[1, 0, 1])
    assert describe(twice).duplicate_edges == 1


def test_fingerprints() -> None:
    plain = from_edges(SRC, DST)
    assert plain.fingerprint == "a5a3dd6416fb492c877672cd5f6c98903e2a5cc847dd76cdf338a349c7831b65", (
        "graphs without relations keep their identity"
    )
    others = [
        plain,
        from_edges(SRC, DST, weight=np.ones(5)),
        from_edges(SRC, DST, edge_features=np.ones(5)),
        from_edges(SRC, DST, relation=np.zeros(5, int)),
        from_edges(SRC, DST, relation=[0, 0, 0, 0, 1]),
    ]
    assert len({graph.fingerprint for graph in others}) == len(others)


def test_what_a_person_sees() -> None:
    rows = dict(graph_rows(describe(from_edges(SRC, DST, relation=KIND, edge_features=FEATURES))))
    assert rows["relations"] == "2: owns (3), knows (2)" and rows["edge features"] == "2"
    assert "relations" not in dict(graph_rows(describe(from_edges(SRC, DST))))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"relation": [0, 1, 2]}, r"shape \[3\] for 5 edges"),
        ({"relation": [0, 1, -1, 0, 0]}, "edge 2 has relation -1"),
        ({"relation": [0, 1, 2, 0, 0], "num_relations": 2}, r"edge 2 has relation 2, outside 0\.\.1"),
        ({"relation": [0, 1, 40_000, 0, 0]}, "40001 relations, more than the 32767"),
        ({"relation": [0, 1, 20_000, 0, 0], "undirected": True}, "40002 relations, more than"),
        ({"relation": [0.5, 1, 2, 0, 0]}, "whole numbers"),
        ({"relation": KIND, "relation_names": ["knows", "own"]}, "did you mean 'own'"),
        ({"relation": [0, 1, 1, 0, 0], "relation_names": ["knows"]}, "relation 1, outside"),
        ({"num_relations": 3}, "its edges have no relations"),
        ({"edge_features": FEATURES[:-1]}, r"shape \[4, 2\] for 5 edges"),
        ({"edge_features": np.where(FEATURES == 4, np.nan, FEATURES)}, "first in row 3"),
        ({"edge_features": KIND}, "give numbers"),
    ],
)
def test_mistakes(options: dict[str, object], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        from_edges(SRC, DST, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "options", "hint"),
    [
        ("src,dst,relation\n0,1,a\n1,0,\n", {}, "row 1 .* empty 'relation'"),
        ("src,dst,relation\n0,1,-4\n", {}, "relation -4"),
        ("src,dst\n0,1\n", {"relation_column": "kind"}, "unknown column 'kind'"),
        ("src,dst,a\n0,1,x\n", {"edge_features": ("a",)}, "conversion error to float"),
        ("src,dst,a\n0,1,2\n1,0,\n", {"edge_features": ("a",)}, "NaN .* row 1"),
        ("src,dst,a\n0,1,2\n", {"edge_features": ("a", "c")}, "unknown column 'c'"),
        ("src,dst,a\n0,1,2\n", {"edge_features": ("a",), "weight_column": "a"}, "two things"),
    ],
)
def test_mistakes_in_files(text: str, options: dict[str, object], hint: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(UserError, match=hint):
        ingest(tmp_path / "e.csv", **options)


def test_pyg_edge_types_and_attributes() -> None:
    data = pytest.importorskip("torch_geometric.data")
    index, kinds = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1, 0])
    graph = from_pyg(
        data.Data(edge_index=index, edge_type=kinds, edge_attr=torch.tensor([[1.0, 2], [3, 4]]), num_nodes=3)
    )
    assert edges_of(graph) == [(0, 1, 1, 1.0, 2.0), (1, 2, 0, 3.0, 4.0)] and graph.adjacency.weight is None
    weighted = from_pyg(data.Data(edge_index=index, edge_attr=torch.tensor([[5.0], [6]]), num_nodes=3))
    assert weighted.adjacency.weight.tolist() == [5, 6] and weighted.num_edge_features == 0  # type: ignore[union-attr]


def two_types() -> tuple[dict[str, dict[str, torch.Tensor]], dict[tuple[str, str, str], torch.Tensor]]:
    nodes = {
        "paper": {"x": torch.ones(3, 2), "y": torch.tensor([1, 0, 1]), "train_mask": torch.tensor([True, False, True])},
        "author": {"x": 2 * torch.ones(2, 2)},
    }
    edges = {
        ("author", "writes", "paper"): torch.tensor([[0, 1, 1], [0, 0, 2]]),
        ("paper", "cites", "paper"): torch.tensor([[2], [1]]),
    }
    return nodes, edges


def check_two_types(graph: Graph) -> None:
    assert graph.meta["node_types"] == {"author": 2, "paper": 3} or graph.meta["node_types"] == {
        "paper": 3,
        "author": 2,
    }
    first = {"paper": 0, "author": 3} if next(iter(graph.meta["node_types"])) == "paper" else {"author": 0, "paper": 2}
    wanted = {
        (src, dst, " ".join(kind))
        for kind, pairs in two_types()[1].items()
        for src, dst in ((int(u) + first[kind[0]], int(v) + first[kind[2]]) for u, v in pairs.T)
    }
    assert set(edges_of(graph)) == wanted
    papers = slice(first["paper"], first["paper"] + 3)
    types = graph.types
    assert types is not None and graph.y is not None and graph.train_mask is not None and graph.x is None
    paper, author = (graph.features_of(types.number(kind)) for kind in ("paper", "author"))
    assert paper is not None and tuple(paper.shape) == (3, 2) and paper.eq(1).all()
    assert author is None or author.eq(2).all()
    assert types.target == types.number("paper") and types.span(types.target) == papers
    assert graph.vertex_type is not None and torch.equal(types.of(torch.arange(5)), graph.vertex_type.long())
    assert graph.y[papers].tolist() == [1, 0, 1] and int((graph.y == -1).sum()) == 2
    assert int(graph.train_mask.sum()) == 2 and graph.val_mask is None


def test_pyg_graphs_of_several_types() -> None:
    module = pytest.importorskip("torch_geometric.data")
    nodes, edges = two_types()

    def build() -> object:
        data = module.HeteroData()
        for kind, held in nodes.items():
            for key, value in held.items():
                data[kind][key] = value
        for triple, index in edges.items():
            data[triple].edge_index = index
        return data

    check_two_types(from_pyg(build()))
    del nodes["author"]["x"]
    nodes["author"]["num_nodes"] = 2  # type: ignore[assignment]
    graph = from_pyg(build())
    check_two_types(graph)
    assert graph.types is not None and graph.types.widths == (2, 0) and graph.types.learned
    nodes["author"]["x"] = 2 * torch.ones(2, 5)
    graph = from_pyg(build())
    check_two_types(graph)
    assert graph.types is not None and graph.types.widths == (2, 5) and not graph.types.learned
    nodes["author"] = {"x": torch.ones(2, 2), "y": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(UserError, match="paper, author have labels: say which type is to be predicted, by `target`"):
        from_pyg(build())
    assert from_pyg(build(), target="author").y.tolist() == [-1, -1, -1, 0, 0]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="unknown target type 'papers'"):
        from_pyg(build(), target="papers")


class FakeDglTypes:
    """As much of a heterogeneous DGL graph as from_dgl touches."""

    class Frame:
        def __init__(self, data: dict[str, torch.Tensor]) -> None:
            self.data = data

    class Edges(dict):  # type: ignore[type-arg]
        def __call__(self, etype: tuple[str, str, str]) -> torch.Tensor:
            return two_types()[1][etype]

    def __init__(self) -> None:
        nodes, edges = two_types()
        renamed = {"x": "feat", "y": "label", "train_mask": "train_mask"}
        self.ntypes, self.etypes, self.canonical_etypes = list(nodes), [kind[1] for kind in edges], list(edges)
        self.nodes = {kind: self.Frame({renamed[key]: value for key, value in nodes[kind].items()}) for kind in nodes}
        self.edges = self.Edges({kind: self.Frame({}) for kind in edges})

    def num_nodes(self, ntype: str) -> int:
        return len(self.nodes[ntype].data["feat"])


def test_dgl_graphs_of_several_types() -> None:
    check_two_types(from_dgl(FakeDglTypes()))


def test_synthetic_relations_tell_the_classes() -> None:
    graph = open_graph("synthetic:relational?nodes=1000,relations=5")
    assert graph.relation_names == ("inside-0", "inside-1", "across-0", "across-1", "across-2")
    assert graph.fingerprint == synthetic("relational", nodes=1000, relations=5).fingerprint
    csr = graph.adjacency
    rows = torch.repeat_interleave(torch.arange(1000), csr.degrees())
    same = (graph.y[rows] == graph.y[csr.indices.long()]).float()  # type: ignore[index]
    inside = csr.relation < 2  # type: ignore[operator]
    assert same[inside].mean() > 0.75 and same[~inside].mean() < 0.1
    with pytest.raises(UserError, match="relations=1"):
        synthetic("relational", relations=1)
