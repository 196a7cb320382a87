"""Both writers of parts make the arrays that the schema declares, and further vertex data come through both."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.out_of_core.edgefiles import cut_files, node_files, same_as_in_memory, save_edges
from tests.partitioning.drawn import graph_of
from weft.cli import app as cli
from weft.errors import UserError
from weft.graph import from_edges, load_graph
from weft.graph.files import read_manifest
from weft.graph.vertexdata import check_column_name
from weft.partitioning import load_shard, write_partition
from weft.partitioning.info import part_name
from weft.partitioning.schema import IDS, PART_ARRAYS, PartSizes, find_mistake, is_vertex_data, part_array

EDGES = [(0, 1), (1, 2), (2, 0), (3, 3), (4, 1), (5, 0), (2, 5)]
TIMES = np.arange(6, dtype=np.int64) + 2**40


def described(folder: Path, part: int = 0) -> dict[str, tuple[str, int]]:
    """Name, type and number of dimensions of a part's arrays."""
    arrays = read_manifest(folder / part_name(part), "part")["arrays"]
    return {name: (array["dtype"], len(array["shape"])) for name, array in arrays.items()}


def test_both_writers_make_the_same_arrays(tmp_path: Path) -> None:
    """Names, types, shapes and bytes, with weights, a timestamp, and a second table of features."""
    edges = save_edges(tmp_path / "edges.npy", EDGES)
    weight = np.arange(1, len(EDGES) + 1, dtype=np.float32)
    table, kind = np.random.default_rng(0).random((6, 2)), np.arange(6, dtype=np.uint8)
    further = {"timestamp": TIMES, "table": table, "kind": kind}
    for name, values in {"weight": weight, **further}.items():
        np.save(tmp_path / f"{name}.npy", values)
    files = node_files(tmp_path, 6)
    settings: dict[str, Any] = {
        "edges": (edges,), "columns": (None, None, str(tmp_path / "weight.npy"), None, ()), **files,
        "vertex_data": {name: tmp_path / f"{name}.npy" for name in further}, "parts": 2, "method": "hash",
    }  # fmt: skip
    cut_files(tmp_path / "files", 1, **settings)
    pairs = np.array(EDGES)
    x, y = (np.load(path) for path in files.values())
    graph = from_edges(pairs[:, 0], pairs[:, 1], x=x, y=y, weight=weight, num_nodes=6, vertex_data=further)
    same_as_in_memory(tmp_path / "files", graph, tmp_path / "memory")
    assert described(tmp_path / "files") == described(tmp_path / "memory")
    for folder in ("files", "memory"):
        for worker in range(2):
            shard = load_shard(tmp_path / folder, worker, 2)
            assert torch.equal(shard.vertex_data["timestamp"], torch.from_numpy(TIMES)[shard.global_ids])
            assert shard.vertex_data["table"].dtype == torch.float64 and shard.vertex_data["kind"].dtype == torch.int16


def test_every_declared_array_is_written(tmp_path: Path) -> None:
    plain = graph_of(6, EDGES, weighted=True)
    timed = replace(plain.adjacency, time=torch.arange(plain.num_edges, dtype=torch.float64))
    graph = replace(plain, adjacency=timed, original_ids=np.array([f"v{k}" for k in range(6)]))
    graph = graph.with_vertex_data(time=torch.zeros(6, dtype=torch.float64))
    write_partition(graph, torch.tensor([0, 1, 0, 1, 0, 1]), tmp_path / "parts")
    found = described(tmp_path / "parts")
    assert set(found) == {*PART_ARRAYS, "timestamp", "table"}
    for name, (dtype, _) in found.items():
        declared = part_array(name).dtype
        assert declared is None or np.dtype(dtype) == declared


def test_no_column_can_take_the_name_of_another_array() -> None:
    for name in PART_ARRAYS:
        if not is_vertex_data(name):
            with pytest.raises(UserError, match="another array"):
                check_column_name(name)
    assert not is_vertex_data(IDS) and is_vertex_data("x") and is_vertex_data("timestamp")


def array(dtype: Any, *shape: int) -> dict[str, Any]:
    return {"dtype": np.dtype(dtype).str, "shape": list(shape)}


SIZES = PartSizes(nodes=3, halo=2, edges=(4, 5))
SOUND = {
    "global_ids": array(np.int64, 3), "halo_ids": array(np.int64, 2), "halo_rows": array(np.int64, 2),
    "local_indptr": array(np.int64, 4), "local_indices": array(np.int32, 4),
    "remote_indptr": array(np.int64, 4), "remote_indices": array(np.int32, 5),
    "x": array(np.float32, 3, 7), "train_mask": array(np.bool_, 2, 3), "timestamp": array(np.int64, 3),
}  # fmt: skip


def test_sound_arrays() -> None:
    assert find_mistake(SOUND, SIZES, ()) is None
    assert find_mistake(SOUND | {"x": array(np.int16, 3, 7)}, SIZES, ("x",)) is None


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("global_ids", None, "it has no global_ids"),
        ("local_indices", array(np.int64, 4), "not int32"),
        ("remote_indptr", array(np.int64, 5), "for 4 rows"),
        ("halo_rows", array(np.int64, 3), "one per halo vertex"),
        ("remote_weight", array(np.float32, 4), "one per remote edge"),
        ("x", array(np.float64, 3, 7), "its x is float64"),
        ("x", array(np.float32, 3), "its x is float32"),
        ("train_mask", array(np.bool_, 3, 2), "for 3 rows"),
        ("timestamp", array(np.int64, 4), "one per owned vertex"),
        ("timestamp", array("U4", 3), "its timestamp"),
        ("timestamp", {"dtype": "no type", "shape": [3]}, "does not know"),
    ],
)
def test_arrays_that_are_not_as_declared(name: str, wrong: dict[str, Any] | None, words: str) -> None:
    arrays = {key: value for key, value in (SOUND | {name: wrong}).items() if value is not None}
    assert words in (find_mistake(arrays, SIZES, ()) or "")


def test_vertex_data_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files by `weft ingest` into a graph folder, and into the shards of its parts."""
    monkeypatch.chdir(tmp_path)
    save_edges(Path("edges.npy"), EDGES)
    np.save("times.npy", TIMES)
    for arguments in (
        ["ingest", "edges.npy", "--num-nodes", "6", "--vertex-data", "timestamp=times.npy", "--out", "graph"],
        ["partition", "graph", "--parts", "2", "--method", "random", "--out", "parts"],
    ):
        monkeypatch.setattr(sys, "argv", ["weft", *arguments])
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert not done.value.code
    assert torch.equal(load_graph("graph").vertex_data["timestamp"], torch.from_numpy(TIMES))
    for workers in (1, 2):
        shard = load_shard("parts", 0, workers)
        assert torch.equal(shard.vertex_data["timestamp"], torch.from_numpy(TIMES)[shard.global_ids])
