"""A full disk is one sentence that says what is needed and what is free, and leaves nothing half-written."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.disk.space import sentence_for
from weft.errors import UserError
from weft.graph import load_graph, save_graph, synthetic
from weft.graph.files import FolderWriter
from weft.kernels import memory
from weft.out_of_core.growing import GrowingArray
from weft.partitioning import read_partition, write_partition


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here ({mounted.stderr.decode().strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_graph_that_does_not_fit(small_disk: Path) -> None:
    graph = synthetic("tiny")
    save_graph(graph, small_disk / "kept")
    wide = torch.ones(graph.num_nodes, 2000)
    large = graph.with_vertex_data(x=wide)
    for path, overwrite in ((small_disk / "g", False), (small_disk / "kept", True)):
        with pytest.raises(UserError, match=r"the disk is full at .* \(2\.3 MiB needed, .* free\): free some space"):
            save_graph(large, path, overwrite=overwrite)
    assert [entry.name for entry in small_disk.iterdir()] == ["kept"]
    assert load_graph(small_disk / "kept", verify=True).fingerprint == graph.fingerprint


def test_room_is_reserved_before_a_file_is_mapped(small_disk: Path) -> None:
    """Otherwise the process dies of SIGBUS, half-way."""
    with pytest.raises(UserError, match="the disk is full"), FolderWriter(small_disk / "g", "graph") as folder:
        folder.create("numbers", (1 << 20,), np.float32)[:] = 1
    with memory.scoped_policy():
        memory.set_policy(memory.Policy(spill_folder=small_disk))
        with pytest.raises(UserError, match=r"the disk is full at .* \(4\.0 MiB needed"):
            memory.empty((1 << 20,), torch.float32).fill_(1)
    assert list(small_disk.iterdir()) == []


def test_parts_that_do_not_fit(small_disk: Path) -> None:
    graph = synthetic("tiny")
    wide = graph.with_vertex_data(x=torch.ones(graph.num_nodes, 2000))
    owner = torch.arange(graph.num_nodes) % 3
    write_partition(graph, owner, small_disk / "parts")
    with pytest.raises(UserError, match="the disk is full"):
        write_partition(wide, owner, small_disk / "parts", overwrite=True)
    assert [entry.name for entry in small_disk.iterdir()] == ["parts"]
    assert read_partition(small_disk / "parts").num_features == graph.num_features


def test_files_may_be_limited_too(tmp_path: Path) -> None:
    """Without root: the limit of the process on the size of a file."""
    graph = synthetic("tiny")
    with files_of_at_most(8192):
        with pytest.raises(UserError, match=r"may not be so large here .*ulimit -f"):
            save_graph(graph, tmp_path / "g")
        with pytest.raises(UserError, match="may not be so large"), FolderWriter(tmp_path / "f", "graph") as folder:
            folder.create("numbers", (9000,), np.int8)
        grown = GrowingArray(tmp_path / "grown.npy", np.int64)
        with pytest.raises(UserError, match=r"grown\.npy"):
            for _ in range(9):
                grown.append(np.arange(1 << 10))
    assert [entry.name for entry in tmp_path.iterdir()] == ["grown.npy"]


def weft(folder: Path, *arguments: str, limit: int | None = None) -> "subprocess.CompletedProcess[str]":
    def set_limit() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "weft", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, preexec_fn=set_limit
    )


def test_a_run_whose_checkpoint_does_not_fit(tmp_path: Path) -> None:
    settings = ["--data", "synthetic:tiny", "--epochs", "2", "--set", "model.hidden=64"]
    failed = weft(tmp_path, "train", *settings, "--run", "run", limit=20_000)
    assert failed.returncode == 2, failed.stderr
    assert "may not be so large" in failed.stderr and "Traceback" not in failed.stderr
    assert list(tmp_path.iterdir()) == [] or not list((tmp_path / "run").rglob("*.safetensors"))


def test_what_is_no_matter_of_the_disk_stays_what_it_is() -> None:
    assert sentence_for(ValueError("x")) is None and sentence_for(OSError("x")) is None
    assert sentence_for(ConnectionRefusedError(111, "refused")) is None
    assert "memory ran out" in str(sentence_for(MemoryError()))

    class SafetensorError(Exception): ...

    text = 'I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }'
    assert "the disk is full" in str(sentence_for(SafetensorError(text)))
