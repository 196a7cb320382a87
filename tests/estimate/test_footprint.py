"""Memory limits that are really set: what does not fit is refused with a sentence, what needs less trains."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft.estimate.footprint import WorkerLoad, estimate_bytes, memory_limit, ran_out_of_memory
from weft.prepare import partition
from weft.strategy import ExchangeConfig, MemoryConfig

SPEC = "synthetic:dense?nodes=16000,degree=30"
SEQUENTIAL = ExchangeConfig(schedule="sequential")
REMATERIALISED = MemoryConfig(rematerialise=True)


def train(parts: Path, run: Path, kib: int, *options: str) -> subprocess.CompletedProcess[str]:
    """`weft train` in a shell that limits each process's private memory."""
    command = [
        sys.executable,
        "-m",
        "weft",
        "train",
        "--data",
        str(parts),
        "--run",
        str(run),
        "--epochs",
        "2",
        *options,
    ]
    command += ["--epochs", "2", "--set", "threads=1", "--set", "model.layers=3", "--set", "memory.restrict=never"]
    return subprocess.run(
        ["bash", "-c", f'ulimit -d {kib} && exec "$@"', "bash", *command], capture_output=True, text=True, timeout=240
    )


@pytest.mark.timeout(500)
def test_sequential_trains_where_materialised_does_not_fit(tmp_path):
    partition(SPEC, 4, tmp_path / "parts", method="random")
    wide = ["--workers", "4", "--model", "gat", "--set", "model.hidden=256", "--set", "model.heads=4"]
    refused = train(tmp_path / "parts", tmp_path / "refused", 570_000, *wide)
    assert refused.returncode != 0
    assert "schedule materialised needs about" in refused.stderr and "ulimit -d leaves" in refused.stderr
    assert "schedule sequential (--strategy sar) needs about" in refused.stderr
    assert not (tmp_path / "refused" / "summary.json").exists()

    insisting = train(tmp_path / "parts", tmp_path / "failed", 570_000, *wide, "--set", "memory.check=false")
    assert insisting.returncode != 0
    assert "memory ran out: schedule materialised needs about" in insisting.stderr, insisting.stderr

    sequential = train(tmp_path / "parts", tmp_path / "run", 570_000, *wide, "--strategy", "sar")
    assert sequential.returncode == 0, sequential.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.timeout(500)
def test_one_worker_trains_on_rows_in_files(tmp_path):
    """One process, several parts: rows lie in files, the numbers are those of the run that holds them in memory."""
    partition(SPEC, 6, tmp_path / "parts", method="random")
    wide = ["--workers", "1", "--model", "sage", "--set", "model.hidden=960", "--set", "memory.check=false"]
    insisting = train(tmp_path / "parts", tmp_path / "failed", 490_000, *wide)
    assert insisting.returncode != 0 and "memory ran out" in insisting.stderr + insisting.stdout
    in_files = train(tmp_path / "parts", tmp_path / "files", 490_000, *wide, "--strategy", "sar")
    assert in_files.returncode == 0, in_files.stderr
    in_memory = train(tmp_path / "parts", tmp_path / "memory", 8_000_000, *wide)
    assert in_memory.returncode == 0, in_memory.stderr
    losses = [json.loads((tmp_path / run / "summary.json").read_text())["train_loss"] for run in ("files", "memory")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    left = {path.name for path in (tmp_path / "files").iterdir()}
    assert not {name for name in left if name.startswith("tmp")}, "the files of rows are gone with the process"


def load(rows: int, halo: int, workers: int) -> WorkerLoad:
    return WorkerLoad(rows, halo, rows * 20, (128, 256, 256, 40), 4, workers, attention=True)


def test_estimates_fall_with_the_workers_only_where_blocks_are_freed():
    few, many = load(50_000, 50_000, 2), load(12_500, 87_500, 8)
    base = estimate_bytes(load(0, 0, 1), SEQUENTIAL, REMATERIALISED)
    sequential = [estimate_bytes(each, SEQUENTIAL, REMATERIALISED) - base for each in (few, many)]
    materialised = [estimate_bytes(each, ExchangeConfig(), MemoryConfig()) - base for each in (few, many)]
    assert sequential[0] / sequential[1] > 3.5
    assert materialised[0] / materialised[1] < 2.0


def test_limits_and_failures_are_recognised():
    assert memory_limit(1).num_bytes >= 2 * memory_limit(4).num_bytes
    assert ran_out_of_memory(MemoryError()) and ran_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert ran_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"))
    assert ran_out_of_memory(RuntimeError("can't start new thread"))
    assert ran_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."))
    assert not ran_out_of_memory(RuntimeError("shapes differ")) and not ran_out_of_memory(OSError(2, "No such file"))
