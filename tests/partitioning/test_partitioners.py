"""Partition methods of other packages: one file registers them, and every way to name a method knows them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from tests.one_run import trained
from tests.out_of_core.edgefiles import cut_files, save_edges
from weft.cli import app as cli
from weft.config import known_keys
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.out_of_core.owners import SpilledGraph
from weft.partitioning import (
    Assignment,
    Request,
    Requires,
    find_partitioner,
    list_partitioners,
    read_owner,
    read_partition,
    register_partitioner,
)
from weft.partitioning.partitioners import _REGISTERED

RUN = {"model": {"name": "gcn", "hidden": 4}, "train": {"epochs": 2}, "threads": 1}


def halves(graph: Graph, request: Request) -> Assignment:
    return Assignment(torch.arange(graph.num_nodes) * request.parts // graph.num_nodes)


def thirds(graph: SpilledGraph, request: Request) -> Assignment:
    return Assignment(torch.arange(len(graph.degrees)) % request.parts)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(_REGISTERED)
    register_partitioner("halves", halves, "contiguous ids")
    register_partitioner("thirds", thirds, "remainders", Requires(whole_graph=False))
    yield
    _REGISTERED.clear()
    _REGISTERED.update(before)


def test_a_run_by_name(tmp_path: Path) -> None:
    settings = {**RUN, "data": "synthetic:tiny", "workers": 2, "partition": {"method": "halves"}}
    summary = trained(tmp_path / "run", settings)
    assert summary["partition"]["method"] == "halves" and summary["workers"] == 2
    owner = read_owner(tmp_path / "run" / "parts")
    assert bool((owner[1:] >= owner[:-1]).all())


def test_the_command_line_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["weft", "partition", "synthetic:tiny", "--parts", "2", "--method"]
    monkeypatch.setattr(sys, "argv", [*command, "halves", "--out", str(tmp_path / "parts")])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert not done.value.code
    assert read_partition(tmp_path / "parts").method == "halves"
    assert "halves" in known_keys()["partition.method"]
    monkeypatch.setattr(sys, "argv", [*command, "halfs", "--out", str(tmp_path / "other")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "did you mean 'halves'" in capsys.readouterr().err


def test_edge_files_by_name(tmp_path: Path) -> None:
    edges = save_edges(tmp_path / "edges.npy", [(0, 1), (1, 2), (2, 3), (3, 4)])
    info = cut_files(tmp_path / "parts", 1, edges=(edges,), parts=3, method="thirds")
    assert info.method == "thirds" and read_owner(tmp_path / "parts").tolist() == [0, 1, 2, 0, 1]


def test_wrong_answers_of_a_method_for_edge_files(tmp_path: Path) -> None:
    def beyond(graph: SpilledGraph, request: Request) -> Assignment:
        return Assignment(torch.full((len(graph.degrees),), request.parts))

    register_partitioner("beyond", beyond, requires=Requires(whole_graph=False))
    edges = save_edges(tmp_path / "edges.npy", [(0, 1), (1, 2)])
    with pytest.raises(UserError, match=r"names parts 2\.\.2, but there are parts 0\.\.1"):
        cut_files(tmp_path / "parts", 1, edges=(edges,), parts=2, method="beyond")


def test_an_installed_package(tmp_path: Path) -> None:
    """Workers and commands are other processes: they find what packages name as entry points."""
    (tmp_path / "site" / "quarters-1.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "quarters-1.dist-info" / "METADATA").write_text("Name: quarters\nVersion: 1\n")
    (tmp_path / "site" / "quarters-1.dist-info" / "entry_points.txt").write_text("[weft.plugins]\nq = quarters\n")
    (tmp_path / "site" / "quarters.py").write_text(
        "import torch\n"
        "from weft.partitioning import Assignment, register_partitioner\n"
        "def quarters(graph, request):\n"
        "    return Assignment(torch.arange(graph.num_nodes) % request.parts)\n"
        "register_partitioner('quarters', quarters)\n"
    )
    command = [sys.executable, "-m", "weft", "train", "--data", "synthetic:tiny", "--workers", "2", "--epochs", "1"]
    options = ["--set", "partition.method=quarters", "--set", "threads=1", "--run", "run"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(Path(weft.__file__).parents[1])])
    }
    done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_owner(tmp_path / "run" / "parts").tolist() == [vertex % 2 for vertex in range(300)]


def test_what_methods_require(monkeypatch: pytest.MonkeyPatch) -> None:
    register_partitioner("far", halves, requires=Requires(package="nowhere"), preference=99)
    with pytest.raises(UserError, match="method far needs nowhere: pip install nowhere"):
        find_partitioner("far")
    assert find_partitioner("auto").name != "far", "auto takes what can run here"
    register_partitioner("trained", halves, requires=Requires(training_vertices=True))
    bare = weft.from_edges(np.array([[0, 1], [1, 0]]))
    with pytest.raises(UserError, match=r"no training vertices, which method 'trained' needs"):
        find_partitioner("trained").run(bare, Request(2))


def test_names_are_taken_once() -> None:
    register_partitioner("halves", halves)  # the same again, as when a module is loaded twice
    with pytest.raises(UserError, match="'halves' already"):
        register_partitioner("halves", lambda graph, request: halves(graph, request))
    with pytest.raises(UserError, match="cannot be called 'auto'"):
        register_partitioner("auto", halves)
    assert next(one.name for one in list_partitioners(whole_graph=False)) == "stream"
