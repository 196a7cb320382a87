"""What is said to mistakes, and that nothing half-made stays, whatever ends the work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.out_of_core.edgefiles import cut_files, save_edges
from weft.cli import app as cli
from weft.errors import UserError
from weft.partitioning import read_partition

TRIANGLE = [(0, 1), (1, 2), (2, 0)]


def saved(array: Any) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        np.save(path, array)
        return path

    return write


def text(content: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path = path.with_suffix(".csv")
        path.write_text(content)
        return path

    return write


EDGE_MISTAKES = [
    (saved(np.array([[0, -1], [1, 2]])), {}, r"edge 1 .*\(-1 -> 2\) points outside.*weft ingest"),
    (saved(np.array([[0, 1], [1, 9]])), {"num_nodes": 5}, r"\(1 -> 9\) points outside the graph, .* 0\.\.4"),
    (saved(np.array([[0, 2**40], [1, 2]])), {}, "weft ingest"),
    (saved(np.array([[0.5, 1.0], [1.0, 2.0]])), {}, "float64 where ids should be"),
    (saved(np.zeros((3, 3), np.int64)), {}, r"edges are \[2, E\] or \[E, 2\]"),
    (text("src,dst\nann,bob\n"), {}, "no integers.*weft ingest"),
    (text("src,dst\n1,\n"), {}, "a row without 'dst'"),
    (text("a,b,c\n1,2,3\n"), {"header": True}, "--src-column"),
    (text("src,dst\n1,2\n3\n"), {}, "cannot be read"),
    (text("src,dst\n"), {}, "has no edges"),
]


@pytest.mark.parametrize(("write", "options", "hint"), EDGE_MISTAKES, ids=[hint for _, _, hint in EDGE_MISTAKES])
def test_mistakes_in_edges(tmp_path: Path, write: Callable[[Path], Path], options: Any, hint: str) -> None:
    edges = write(tmp_path / "edges.npy")
    with pytest.raises(UserError, match=hint):
        cut_files(tmp_path / "parts", 1, edges=(edges,), parts=2, **options)
    assert os.listdir(tmp_path) == [edges.name]


NODE_MISTAKES = [
    ("features", np.ones((4, 2), np.float32), {"num_nodes": 3}, "4 rows for 3 vertices"),
    ("features", np.ones((3, 2), "U3"), {}, "features are numbers"),
    ("features", np.array([[1.0], [np.nan], [2.0]]), {}, "NaN or infinite values, first in row 1"),
    ("features", np.array([[1], [0x7F80], [2]], np.int16), {}, "first in row 1"),
    ("features", np.ones(3, np.float32), {}, r"\[N, F\]"),
    ("labels", np.array([0, 1, -7]), {}, "row 2"),
    ("labels", np.array([0.0, 1.5, 2.0]), {}, "row 1"),
    ("labels", np.array([0, 1, 5]), {"num_classes": 3}, "beyond the 3 classes"),
    ("split", np.array([0]), {"split": "random:0.9,0.5"}, "random:0.6,0.2@SEED"),
    ("split", np.array([0]), {"split": "nowhere.npz"}, "nowhere.npz does not exist"),
    ("split", np.array([7]), {"split": "data.npy,data.npy,data.npy"}, "train split"),
    ("method", np.array([0]), {"method": "metis"}, "hash, range, stream"),
    ("parts", np.array([0]), {"parts": 40_000}, "1 to 32767 parts"),
    ("memory", np.array([0]), {"memory_bytes": 10}, "give at least --memory"),
]


@pytest.mark.parametrize(("what", "data", "options", "hint"), NODE_MISTAKES, ids=[hint for *_, hint in NODE_MISTAKES])
def test_other_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, data: Any, options: Any, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", data)
    job = {"edges": (save_edges(Path("edges.npy"), TRIANGLE),), "parts": 2, **options}
    if what in ("features", "labels"):
        job[what] = Path("data.npy")
    with pytest.raises(UserError, match=hint):
        cut_files(Path("parts"), 1, **job)
    assert sorted(os.listdir()) == ["data.npy", "edges.npy"]


# -- the command --------------------------------------------------------------------------------------------------


def weft(*args: Any) -> list[str]:
    return [sys.executable, "-m", "weft", *map(str, args)]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_edges(Path("edges.npy"), TRIANGLE)
    np.save("x.npy", np.ones((3, 2), np.float32))
    options = ["--features", "x.npy", "--parts", 2, "--workers", 2, "--memory", "1M", "--out", "parts"]
    done = subprocess.run(weft("partition", "edges.npy", *options), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "peak memory per worker" in done.stdout and "cut edges" in done.stdout
    info = read_partition("parts")
    assert (info.method, info.num_nodes, info.num_edges, info.graph_name) == ("stream", 3, 3, "edges")
    assert sorted(os.listdir()) == ["edges.npy", "parts", "x.npy"]


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["synthetic:tiny", "--features", "x.npy"], "no edge file, so that --features cannot be given"),
        (["missing.npy"], "missing.npy does not exist"),
        (["edges.npy", "--memory", "lots"], "512M or 2G"),
        (["edges.npy", "--method", "metis"], "hash, range, stream"),
    ],
)
def test_mistakes_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_edges(Path("edges.npy"), TRIANGLE)
    monkeypatch.setattr(sys, "argv", ["weft", "partition", *args, "--parts", "2", "--out", "parts"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and len(lines) == 1 and hint in lines[0]
    assert os.listdir() == ["edges.npy"]


@pytest.mark.parametrize("victim", ["worker", "launcher"])
def test_nothing_stays_of_work_that_was_ended(tmp_path: Path, victim: str) -> None:
    """A worker that is killed, and a launcher that is told to stop."""
    pairs = np.random.default_rng(0).integers(0, 10_000, (2, 3_000_000), dtype=np.int32)
    np.save(tmp_path / "edges.npy", pairs)
    command = weft("partition", "edges.npy", "--parts", 4, "--workers", 2, "--memory", "1M", "--out", "parts")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(tmp_path.glob(".parts.*/scratch/buckets-1/*")) or process.poll() is not None)
    assert process.poll() is None, process.stderr and process.stderr.read()
    if victim == "worker":
        os.kill(children(process.pid)[-1], signal.SIGKILL)
    else:
        process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == (1 if victim == "worker" else 128 + signal.SIGTERM), err
    assert os.listdir(tmp_path) == ["edges.npy"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)
