"""Graph folders: what goes in comes out, and damage is noticed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.graph.sealing import reseal
from weft.errors import UserError
from weft.graph import from_edges, load_graph, save_graph, synthetic
from weft.graph.csr import EDGE_DATA
from weft.graph.files import FolderWriter, drop_pages, read_array, read_manifest
from weft.graph.graph import Graph


def assert_same(one: Graph, two: Graph) -> None:
    assert one.fingerprint == two.fingerprint
    assert list(one.vertex_data) == list(two.vertex_data)
    for name, rows in one.vertex_data.items():
        assert rows.dtype == two.vertex_data[name].dtype and torch.equal(rows, two.vertex_data[name]), name
    for name in ("indptr", "indices", *EDGE_DATA):
        a, b = getattr(one.adjacency, name), getattr(two.adjacency, name)
        assert (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and torch.equal(a, b))), name
    assert (one.original_ids is None) == (two.original_ids is None)
    if one.original_ids is not None:
        assert one.original_ids.tolist() == two.original_ids.tolist()  # type: ignore[union-attr]
    for name in ("num_classes", "name", "class_names", "num_relations", "relation_names", "meta"):
        assert getattr(one, name) == getattr(two, name), name


def everything(**changes: object) -> Graph:
    arguments: dict[str, object] = {
        "ids": np.array(["ann", "bob", "zoë", "a longer name"]),
        "src": np.array(["ann", "bob", "zoë"]),
        "dst": np.array(["bob", "zoë", "zoë"]),
        "weight": [1.0, 2.0, 0.5],
        "relation": np.array(["knows", "owns", "knows"]),
        "edge_features": np.array([[0.5, 2.0], [1.0, -3.0], [0.25, 4.0]]),
        "x": np.arange(8).reshape(4, 2),
        "y": [0, 1, -1, 1],
        "class_names": ["cat", "dog"],
        "train_mask": np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool),
        "val_mask": np.array([[0, 1, 0, 0], [1, 0, 0, 0]], bool),
        "test_mask": np.array([[0, 0, 0, 1], [0, 0, 0, 1]], bool),
        "vertex_data": {"born": np.array([2**40, 5, -1, 7]), "level": np.array([1, 2, 3, 255], np.uint8)},
        "name": "pets",
        "meta": {"source": "here"},
    }
    return from_edges(**{**arguments, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "graph",
    [
        everything(),
        everything(relation=None, edge_features=None),
        everything(relation=[0, 3, 1]),
        everything(x=torch.ones(4, 3, dtype=torch.bfloat16)),
        everything(y=np.array([[1, 0], [0, 1], [-1, -1], [1, 1]])),
        from_edges([2, 0], [0, 1], ids=None, num_nodes=3),
        from_edges([9, 5], [5, 9], ids=[9, 5]),
        from_edges([], [], num_nodes=2, x=np.ones((2, 1))),
        synthetic("tiny", weighted=True),
    ],
    ids=["all", "untyped", "numbered", "bf16", "several-labels", "bare", "integer-ids", "no-edges", "synthetic"],
)
def test_round_trip(graph: Graph, tmp_path: Path) -> None:
    save_graph(graph, tmp_path / "g")
    assert_same(graph, load_graph(tmp_path / "g"))
    assert_same(graph, load_graph(tmp_path / "g", verify=True))
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_arrays_are_memory_mapped_and_no_pickle_is_needed(tmp_path: Path) -> None:
    save_graph(everything(), tmp_path / "g")
    loaded = load_graph(tmp_path / "g")
    assert isinstance(loaded.original_ids, np.memmap)
    loaded.x.zero_()  # type: ignore[union-attr]  # copy on write: the file stays
    assert_same(everything(), load_graph(tmp_path / "g", verify=True))
    for file in (tmp_path / "g").glob("*.npy"):
        np.load(file, allow_pickle=False)


def test_a_replaced_adjacency_gets_its_own_fingerprint(tmp_path: Path) -> None:
    from dataclasses import replace

    save_graph(everything(), tmp_path / "g")
    loaded = load_graph(tmp_path / "g")
    other = replace(loaded, adjacency=replace(loaded.adjacency, weight=None))
    assert other.fingerprint != loaded.fingerprint == everything().fingerprint


@pytest.mark.parametrize("name", ["indptr", "indices", "weight", "x", "y", "train_mask", "original_ids"])
def test_a_changed_byte_is_found_by_verify(name: str, tmp_path: Path) -> None:
    save_graph(everything(), tmp_path / "g")
    file = tmp_path / "g" / f"{name}.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.npy was altered"):
        load_graph(tmp_path / "g", verify=True)


@pytest.mark.parametrize("name", ["indptr", "x", "original_ids"])
def test_a_truncated_file_is_found_without_verify(name: str, tmp_path: Path) -> None:
    save_graph(everything(), tmp_path / "g")
    file = tmp_path / "g" / f"{name}.npy"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UserError, match=f"{name}.npy was altered or truncated"):
        load_graph(tmp_path / "g")


def test_missing_and_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no graph folder"):
        load_graph(tmp_path)
    save_graph(everything(), tmp_path / "g")
    (tmp_path / "g" / "x.npy").unlink()
    with pytest.raises(UserError, match="is missing"):
        load_graph(tmp_path / "g")
    manifest = tmp_path / "g" / "manifest.json"
    described = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**described, "weft": "partition"}))
    with pytest.raises(UserError, match="is a partition folder, not a graph folder"):
        load_graph(tmp_path / "g")
    manifest.write_text(json.dumps({**described, "format": 99}))
    with pytest.raises(UserError, match="format 99"):
        load_graph(tmp_path / "g")
    manifest.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        load_graph(tmp_path / "g")


def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    save_graph(from_edges([0, 1], [1, 0]), tmp_path / "g")
    file = tmp_path / "g" / "indptr.npy"
    np.save(file, np.array([0, 1, 9]))
    reseal(tmp_path / "g")
    with pytest.raises(UserError, match="do not belong together"):
        load_graph(tmp_path / "g")


def test_a_fingerprint_that_is_not_the_edges_is_refused(tmp_path: Path) -> None:
    save_graph(everything(), tmp_path / "g")
    manifest = tmp_path / "g" / "manifest.json"
    described = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**described, "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match=r"manifest\.json was altered"):
        load_graph(tmp_path / "g")
    reseal(tmp_path / "g")
    with pytest.raises(UserError, match="fingerprint"):
        load_graph(tmp_path / "g", verify=True)


def test_nothing_stays_after_a_failure_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    bad = replace(everything(), meta={"callback": object()})  # no JSON: fails when all arrays are written
    with pytest.raises(TypeError):
        save_graph(bad, tmp_path / "g")
    assert list(tmp_path.iterdir()) == []
    nan = everything().with_vertex_data(x=torch.full((4, 2), float("nan")))
    with pytest.raises(UserError, match="NaN"):
        save_graph(nan, tmp_path / "g")
    assert list(tmp_path.iterdir()) == []
    save_graph(everything(), tmp_path / "g")
    with pytest.raises(UserError, match="exists already"):
        save_graph(synthetic("tiny"), tmp_path / "g")
    assert_same(everything(), load_graph(tmp_path / "g"))
    save_graph(synthetic("tiny"), tmp_path / "g", overwrite=True)
    assert load_graph(tmp_path / "g").num_nodes == 300
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="will not be overwritten"):
        save_graph(everything(), tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_dropped_pages_come_back_from_the_file(tmp_path):
    with FolderWriter(tmp_path / "folder", "graph") as folder:
        folder.add("numbers", np.arange(1 << 16))
    array = read_array(tmp_path / "folder", read_manifest(tmp_path / "folder", "graph"), "numbers")
    tensor = torch.from_numpy(array)
    assert int(tensor.sum()) == sum(range(1 << 16))
    drop_pages(tensor.data_ptr())
    assert int(tensor.sum()) == sum(range(1 << 16))
    drop_pages(torch.ones(3).data_ptr())  # nothing that is mapped: nothing happens
