"""One door to every graph: names, files, folders of other libraries."""

import gzip
import hashlib
import importlib
import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import weft
from tests.graph.test_build import edges_of
from weft.errors import UserError
from weft.graph import (
    check_trainable,
    describe,
    from_dgl,
    from_edges,
    from_pyg,
    ingest,
    load_named,
    open_graph,
    save_graph,
    synthetic,
)
from weft.graph.cora import BUNDLED

DATA = Path(os.environ.get("WEFT_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
SHARED = {  # vertices, directed edges, features, classes, splits
    "cora": (2708, 10_556, 1433, 7, 1),
    "citeseer": (3327, 9104, 3703, 6, 1),
    "pubmed": (19_717, 88_648, 500, 3, 1),
    "amazon-computers": (13_752, 491_722, 767, 10, 1),
    "tolokers": (11_758, 1_038_000, 10, 2, 10),
}


@pytest.fixture(autouse=True)
def no_configured_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("WEFT_DATA", str(tmp_path_factory.mktemp("data")))


@pytest.mark.parametrize("name", SHARED)
def test_shared_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / f"{name}.npz").exists():
        pytest.skip(f"{name}.npz is not in {DATA}: set WEFT_TEST_DATA")
    monkeypatch.setenv("WEFT_DATA", str(DATA))
    graph = open_graph(name)
    nodes, edges, features, classes, splits = SHARED[name]
    assert (graph.num_nodes, graph.num_edges) == (nodes, edges)
    assert (graph.num_features, graph.num_classes) == (features, classes)
    found = describe(graph)
    assert found.undirected and len(found.splits) == splits
    assert all(split["overlap"] == 0 for split in found.splits)
    for split in range(splits):
        check_trainable(graph, split)
    with np.load(DATA / f"{name}.npz") as raw:
        u, v = raw["edge_index"]
        assert graph.adjacency.degrees().numpy().tolist() == np.bincount([*u, *v], minlength=nodes).tolist()
        if "x_data" in raw:
            row = int(np.argmax(np.diff(raw["x_indptr"])))
            begin, end = raw["x_indptr"][row : row + 2]
            assert graph.x is not None
            assert graph.x[row, raw["x_indices"][begin:end].astype(int)].tolist() == raw["x_data"][begin:end].tolist()
            assert int((graph.x[row] != 0).sum()) == end - begin


def test_shared_graph_with_several_labels_and_no_features() -> None:
    if not (DATA / "flickr-dw.npz").exists():
        pytest.skip(f"flickr-dw.npz is not in {DATA}: set WEFT_TEST_DATA")
    graph = open_graph(DATA / "flickr-dw.npz")
    assert graph.multi_label and graph.num_classes == 195 and graph.x is None
    assert (graph.num_nodes, graph.num_edges) == (80_513, 11_799_764)


# Of all arrays, as they came out of graphdatascience 2.2
CORA_SHA256 = "b9fd86c66327d240ceffcf971a855253dfd033f307018f7b4840ab6c1cca0428"


def test_cora_comes_with_weft(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("graphdatascience", "neo4j", "torch_geometric"):
        monkeypatch.setitem(sys.modules, name, None)
    graph = open_graph("cora")
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (2708, 10_556, 1433)
    assert describe(graph).splits == ({"train": 140, "val": 500, "test": 1000, "overlap": 0},)
    assert graph.y[graph.train_mask].bincount().tolist() == [20] * 7  # type: ignore[index]
    assert "not the public one" in graph.meta["split"]
    digest = hashlib.sha256()
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    for array in (graph.adjacency.indptr, graph.adjacency.indices, graph.x, graph.y, *masks, graph.original_ids):
        values = np.ascontiguousarray(array)
        digest.update(f"{values.dtype} {values.shape}".encode() + values.tobytes())
    assert digest.hexdigest() == CORA_SHA256
    if (DATA / "cora.npz").exists():  # the same graph, vertices in another order
        other = open_graph(DATA / "cora.npz")
        mine, theirs = graph.adjacency.degrees(), other.adjacency.degrees()
        assert torch.equal(mine.sort().values, theirs.sort().values)
        assert torch.equal(graph.x.sum(1).sort().values, other.x.sum(1).sort().values)  # type: ignore[union-attr]
        assert torch.equal(graph.y.bincount().sort().values, other.y.bincount().sort().values)  # type: ignore[union-attr]


def test_what_comes_with_weft_is_small_and_attributed() -> None:
    root = Path(weft.__file__).parents[1]
    files = sorted(BUNDLED.iterdir())
    assert files and sum(file.stat().st_size for file in files) < 300_000
    notice = (root / "NOTICE").read_text()
    assert all(file.name in notice for file in files)


def test_names_paths_and_folders(tmp_path: Path) -> None:
    graph = synthetic("tiny")
    save_graph(graph, tmp_path / "mine")
    assert open_graph(tmp_path / "mine").fingerprint == graph.fingerprint
    assert load_named("mine", root=tmp_path).fingerprint == graph.fingerprint
    assert open_graph("synthetic:tiny").fingerprint == graph.fingerprint
    assert ingest(tmp_path / "mine").fingerprint == graph.fingerprint
    with pytest.raises(UserError, match="did you mean 'cora'"):
        open_graph("coar")
    with pytest.raises(UserError, match="did you mean 'ogbn-arxiv'"):
        open_graph("ogbn-arxv")
    with pytest.raises(UserError, match="does not exist"):
        open_graph(tmp_path / "none" / "here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no folder that weft knows"):
        open_graph(tmp_path / "empty")
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(UserError, match="weft ingest"):
        open_graph(tmp_path / "e.csv")
    with pytest.raises(UserError, match="features cannot be given"):
        ingest("synthetic:tiny", features="x.npy")


def test_npz_files(tmp_path: Path) -> None:
    edges = np.array([[0, 1], [1, 2]], np.int32)
    np.savez(tmp_path / "once.npz", edge_index=edges, meta=json.dumps({"edges": "undirected, each once u<v"}))
    assert edges_of(open_graph(tmp_path / "once.npz")) == [(1, 0), (0, 1), (2, 1), (1, 2)]
    np.savez(tmp_path / "plain.npz", edge_index=edges, num_nodes=5)
    assert edges_of(open_graph(tmp_path / "plain.npz")) == [(0, 1), (1, 2)]
    assert ingest(tmp_path / "plain.npz", undirected=True).num_edges == 4
    bad: dict[str, tuple[dict[str, object], str]] = {
        "no-edges": ({"x": np.ones((2, 2))}, "has no array 'edge_index'"),
        "stray": ({"edge_index": edges, "train_maks": np.ones(3, bool)}, "did you mean 'train_mask'"),
        "outside": ({"edge_index": edges, "num_nodes": 2}, "points outside the graph"),
        "meta": ({"edge_index": edges, "meta": "{"}, "'meta' is damaged"),
        "parts": ({"edge_index": edges, "x_data": np.ones(2)}, "need all of"),
        "misfit": (
            {
                "edge_index": edges,
                "x_data": np.ones(2),
                "x_indices": np.array([0, 9]),
                "x_indptr": np.array([0, 1, 2, 2]),
                "x_shape": np.array([3, 4]),
            },
            "x_indices is damaged: it holds 9",
        ),
        "length": ({"edge_index": edges, "num_nodes": 3, "x": np.ones((2, 2))}, "features have 2 rows"),
    }
    for name, (arrays, message) in bad.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(UserError) as caught:
            open_graph(tmp_path / f"{name}.npz")
        assert message in str(caught.value) and f"{name}.npz" in str(caught.value)
    np.savez(tmp_path / "pickled.npz", edge_index=np.array([{"a": 1}]))
    with pytest.raises(UserError, match="cannot be read as npz"):
        open_graph(tmp_path / "pickled.npz")


def test_ingesting_a_whole_npz_loses_nothing(tmp_path: Path) -> None:
    arrays = {
        "edge_index": np.array([[0, 1], [1, 2]]),
        "num_nodes": 4,
        "x": np.ones((4, 2)),
        "y": np.array([0, 1, 0, 1]),
    }
    np.savez(tmp_path / "whole.npz", **arrays, meta=json.dumps({"edges": "undirected, each once u<v"}))
    graph = ingest(tmp_path / "whole.npz", name="mine", split="random:0.5,0.25@1", features=None, undirected=False)
    assert (graph.name, graph.num_nodes, graph.num_edges, graph.num_features) == ("mine", 4, 4, 2)
    assert graph.y is not None and graph.train_mask is not None and int(graph.train_mask.sum()) == 2
    for options in ({"labels": "y.csv"}, {"drop_duplicates": True}, {"split": "split.csv"}):
        with pytest.raises(UserError, match="cannot be given"):
            ingest(tmp_path / "whole.npz", **options)
    np.savez(tmp_path / "edges.npz", edge_index=arrays["edge_index"])
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1]))
    assert ingest(tmp_path / "edges.npz", labels=tmp_path / "y.npy").num_nodes == 4


def test_pyg_data() -> None:
    data = pytest.importorskip("torch_geometric.data")
    masks = torch.tensor([[True, False], [False, True], [False, False]])  # [N, S] as PyG has it
    one = data.Data(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        edge_weight=torch.tensor([0.5, 2.0]),
        x=torch.eye(3),
        y=torch.tensor([0, 1, 1]),
        train_mask=masks,
    )
    graph = from_pyg(one)
    assert edges_of(graph) == [(0, 1), (1, 2)] and graph.adjacency.weight.tolist() == [0.5, 2.0]  # type: ignore[union-attr]
    assert graph.train_mask.tolist() == masks.T.tolist()  # type: ignore[union-attr]
    assert graph.num_classes == 2
    several = from_pyg(data.Data(edge_index=one.edge_index, num_nodes=3, y=torch.eye(3)))
    assert several.multi_label
    with pytest.raises(UserError, match="heterogeneous"):
        from_pyg(data.HeteroData())
    with pytest.raises(UserError, match="no edge_index"):
        from_pyg(data.Data(x=torch.eye(3)))


def test_a_pyg_data_set_that_needs_no_network() -> None:
    pytest.importorskip("torch_geometric")
    graph = open_graph("pyg:KarateClub")
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (34, 156, 4)
    with pytest.raises(UserError, match="did you mean 'KarateClub'"):
        open_graph("pyg:KarateClubs")


def test_a_pyg_folder_is_refused_with_the_way_to_load_it(tmp_path: Path) -> None:
    (tmp_path / "set" / "processed").mkdir(parents=True)
    with pytest.raises(UserError, match=r"weft\.from_pyg"):
        open_graph(tmp_path / "set")


def test_pyg_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric", None)
    with pytest.raises(UserError, match=r"pip install '.\[data\]'"):
        open_graph("reddit")


def test_offline_downloads_are_one_sentence_and_leave_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch_geometric = pytest.importorskip("torch_geometric.datasets")

    def offline(root: str, name: str) -> None:
        Path(root, "raw").mkdir(parents=True)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(torch_geometric, "Planetoid", offline)
    with pytest.raises(UserError, match="connect to a network"):
        load_named("pubmed", root=tmp_path)
    assert not (tmp_path / "pyg" / "pubmed").exists()


def write_ogb(folder: Path) -> None:
    """A folder as OGB publishes it: 4 vertices, 3 edges."""
    rows = {
        "raw/edge": "0,1\n1,2\n3,0\n",
        "raw/node-feat": "1,0\n0,1\n2,2\n0.5,1\n",
        "raw/node-label": "0\n1\n1\nnan\n",
        "raw/num-node-list": "4\n",
        "raw/num-edge-list": "3\n",
        "split/time/train": "0\n2\n",
        "split/time/valid": "1\n",
        "split/time/test": "3\n",
    }
    for name, content in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(content.encode()))


def test_ogb_folder(tmp_path: Path) -> None:
    write_ogb(tmp_path / "there" / "arxiv")
    graph = open_graph(tmp_path / "there" / "arxiv")
    assert sorted(edges_of(graph)) == [(0, 1), (1, 2), (3, 0)]
    assert graph.x.tolist() == [[1, 0], [0, 1], [2, 2], [0.5, 1]]  # type: ignore[union-attr]
    assert graph.y.tolist() == [0, 1, 1, -1]  # type: ignore[union-attr]
    assert graph.train_mask.tolist() == [True, False, True, False]  # type: ignore[union-attr]
    named = load_named("ogbn-arxiv", root=tmp_path / "there")  # by the name that the archive gives its folder
    assert named.fingerprint == graph.fingerprint and named.name == "ogbn-arxiv"
    (tmp_path / "there" / "arxiv").rename(tmp_path / "there" / "ogbn_arxiv")
    assert load_named("ogbn-arxiv", root=tmp_path / "there").fingerprint == graph.fingerprint
    assert ingest(tmp_path / "there" / "ogbn_arxiv", undirected=True).num_edges == 6


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("raw/node-feat", "a,b\nc,d\n", "node-feat.csv.gz holds text where"),
        ("raw/node-label", "x\n0\n", "node-label.csv.gz holds text where"),
        ("split/time/train", "first\n", "train.csv.gz holds text where"),
        ("split/time/train", "0\n0.5\n", "train.csv.gz holds fractions or gaps"),
        ("split/time/train", "9\n", "train.csv.gz names a vertex outside 0..3"),
        ("raw/num-node-list", "999999999999999\n", "would take .* of memory"),
        ("raw/num-node-list", "-4\n", "num-node-list.csv.gz has no number of vertices"),
    ],
)
def test_an_ogb_folder_that_is_damaged_is_a_sentence(file: str, content: str, message: str, tmp_path: Path) -> None:
    write_ogb(tmp_path / "arxiv")
    (tmp_path / "arxiv" / f"{file}.csv.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(UserError, match=message):
        open_graph(tmp_path / "arxiv")


def write_large_ogb(folder: Path, **changed: np.ndarray | None) -> None:
    """A folder as OGB publishes its largest set: npz files."""
    write_ogb(folder)
    for file in (folder / "raw").iterdir():
        file.unlink()
    arrays = {
        "edge_index": np.array([[0, 1, 3], [1, 2, 0]]),
        "num_nodes_list": np.array([4]),
        "node_label": np.array([[0], [1], [1], [np.nan]]),
    }
    kept = {name: array for name, array in (arrays | changed).items() if array is not None}
    labels = {name: kept.pop(name) for name in ("node_label",) if name in kept}
    np.savez(folder / "raw" / "data.npz", **kept)
    np.savez(folder / "raw" / "node-label.npz", **labels)


def test_an_ogb_folder_of_npz_files_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    write_large_ogb(tmp_path / "whole")
    graph = open_graph(tmp_path / "whole")
    assert sorted(edges_of(graph)) == [(0, 1), (1, 2), (3, 0)]
    assert graph.y.tolist() == [0, 1, 1, -1]  # type: ignore[union-attr]
    for number, (changed, message) in enumerate(
        [
            ({"edge_index": None}, "data.npz has no array 'edge_index'"),
            ({"edge_index": np.zeros((3, 4), np.int64)}, r"has shape \[3, 4\], not \[2, E\]"),
            ({"num_nodes_list": None}, "data.npz has no array 'num_nodes_list'"),
            ({"num_nodes_list": np.array([])}, "data.npz has no number of vertices"),
            ({"num_nodes_list": np.array(["four"])}, "data.npz has no number of vertices"),
            ({"node_label": None}, "node-label.npz has no array 'node_label'"),
        ]
    ):
        write_large_ogb(tmp_path / str(number), **changed)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=message):
            open_graph(tmp_path / str(number))


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M"])
def test_ogb_data_are_not_downloaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OGB publishes no checksums: whoever answers in its place could hand out any data."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(UserError, match=r"no checksum of it: fetch https://\S+\.zip .* to \S+ogbn_"):
        load_named(name, root=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


class FakeDgl:
    """As much of a DGL graph as from_dgl touches; DGL itself is not among the test dependencies."""

    ntypes, etypes = ("_N",), ("_E",)

    def __init__(self) -> None:
        self.ndata = {"feat": torch.eye(3), "label": torch.tensor([0, 1, 0]), "train_mask": torch.ones(3).bool()}
        self.edata = {"w": torch.tensor([1.0, 3.0])}

    def num_nodes(self) -> int:
        return 3

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([2, 0]), torch.tensor([0, 1])


def test_dgl_graph() -> None:
    graph = from_dgl(FakeDgl())
    assert edges_of(graph) == [(2, 0), (0, 1)] and graph.adjacency.weight.tolist() == [1.0, 3.0]  # type: ignore[union-attr]
    assert graph.num_classes == 2 and graph.num_features == 3 and graph.train_mask is not None


def write_graphbolt(folder: Path, edge_format: str) -> dict[str, object]:
    folder.mkdir()
    edges = np.array([[0, 1, 3], [1, 2, 0]])
    if edge_format == "csv":
        (folder / "edges.csv").write_text("".join(f"{u},{v}\n" for u, v in edges.T))
    else:
        np.save(folder / "edges.npy", edges)
    np.save(folder / "feat.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    described: dict[str, object] = {
        "dataset_name": "toy",
        "graph": {
            "nodes": [{"num": 4}],
            "edges": [{"format": edge_format, "path": f"edges.{'csv' if edge_format == 'csv' else 'npy'}"}],
        },
        "feature_data": [{"domain": "node", "name": "feat", "format": "numpy", "path": "feat.npy"}],
    }
    task: dict[str, object] = {"name": "node_classification", "num_classes": 3}
    for key, seeds, labels in (("train_set", [0, 2], [2, 0]), ("validation_set", [1], [1]), ("test_set", [3], [2])):
        np.save(folder / f"{key}_s.npy", np.array(seeds))
        np.save(folder / f"{key}_l.npy", np.array(labels))
        task[key] = [
            {
                "data": [
                    {"name": "seeds", "format": "numpy", "path": f"{key}_s.npy"},
                    {"name": "labels", "format": "numpy", "path": f"{key}_l.npy"},
                ]
            }
        ]
    described["tasks"] = [task]
    (folder / "metadata.yaml").write_text(yaml.safe_dump(described))
    return described


@pytest.mark.parametrize("edge_format", ["csv", "numpy"])
def test_graphbolt_folder(edge_format: str, tmp_path: Path) -> None:
    write_graphbolt(tmp_path / "toy", edge_format)
    graph = open_graph(tmp_path / "toy")
    assert graph.name == "toy" and sorted(edges_of(graph)) == [(0, 1), (1, 2), (3, 0)]
    assert graph.y.tolist() == [2, 1, 0, 2] and graph.num_classes == 3  # type: ignore[union-attr]
    assert graph.train_mask.tolist() == [True, False, True, False]  # type: ignore[union-attr]
    assert graph.test_mask.tolist() == [False, False, False, True]  # type: ignore[union-attr]
    assert graph.x.shape == (4, 2)  # type: ignore[union-attr]


def test_graphbolt_mistakes(tmp_path: Path) -> None:
    described = write_graphbolt(tmp_path / "toy", "numpy")
    file = tmp_path / "toy" / "metadata.yaml"
    file.write_text("graph: [")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        open_graph(tmp_path / "toy")
    file.write_text("dataset_name: toy")
    with pytest.raises(UserError, match="no GraphBolt description"):
        open_graph(tmp_path / "toy")
    nodes = {"nodes": [{"num": 2, "type": "a"}, {"num": 2, "type": "b"}]}
    file.write_text(yaml.safe_dump({**described, "graph": {**described["graph"], **nodes}}))  # type: ignore[dict-item]
    with pytest.raises(UserError, match="heterogeneous"):
        open_graph(tmp_path / "toy")
    torch_format = [{"domain": "node", "name": "feat", "format": "torch", "path": "feat.pt"}]
    file.write_text(yaml.safe_dump({**described, "feature_data": torch_format}))
    with pytest.raises(UserError, match="format torch"):
        open_graph(tmp_path / "toy")
    np.save(tmp_path / "toy" / "train_set_s.npy", np.array([0, 9]))
    file.write_text(yaml.safe_dump(described))
    with pytest.raises(UserError, match=r"outside 0\.\.3"):
        open_graph(tmp_path / "toy")


@pytest.mark.parametrize(
    ("section", "content", "message"),
    [
        ("graph", {"nodes": [{"num": 10**15}], "edges": [{"path": "edges.npy"}]}, "would take .* of memory"),
        ("graph", {"nodes": [{"num": -4}], "edges": [{"path": "edges.npy"}]}, "no GraphBolt description"),
        ("graph", {"nodes": [{"num": 4}], "edges": [{}]}, r"no GraphBolt description of a graph \('path'\)"),
        ("graph", {"nodes": [{"num": 4}], "edges": ["edges.npy"]}, "no GraphBolt description"),
        ("feature_data", ["feat.npy"], "no GraphBolt description"),
        ("tasks", [{"train_set": [{"data": [{"name": "seeds", "format": "numpy"}]}]}], r"description .* \('path'\)"),
        ("tasks", [{"train_set": 4}], "no GraphBolt description"),
    ],
)
def test_a_graphbolt_description_may_be_anything(section: str, content: object, message: str, tmp_path: Path) -> None:
    described = write_graphbolt(tmp_path / "toy", "numpy") | {section: content}
    (tmp_path / "toy" / "metadata.yaml").write_text(yaml.safe_dump(described))
    with pytest.raises(UserError, match=message):
        open_graph(tmp_path / "toy")


def test_describe() -> None:
    graph = from_edges(
        [0, 1, 1, 2, 2],
        [1, 0, 0, 2, 0],
        x=np.ones((4, 2)),
        y=[0, 0, 1, -1],
        train_mask=[1, 1, 0, 0],
        test_mask=[0, 1, 1, 0],
    )
    found = describe(graph)
    assert (found.num_nodes, found.num_edges, found.self_loops, found.duplicate_edges) == (4, 5, 1, 1)
    assert (found.isolated, found.degree_max, found.degree_mean) == (1, 3, 1.25)
    assert not found.undirected and found.labelled == 3
    assert found.homophily == pytest.approx(4 / 5)
    assert found.splits == ({"train": 2, "test": 2, "overlap": 1},)
    assert found.structure_bytes == 5 * 8 + 5 * 4 and found.feature_bytes == 32


def test_describe_in_chunks_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = synthetic("tiny")
    whole = describe(graph)
    module = importlib.import_module("weft.graph.describe")  # the package holds the function of that name
    monkeypatch.setattr(module, "EDGES_PER_CHUNK", 7)
    assert describe(graph) == whole and whole.undirected
