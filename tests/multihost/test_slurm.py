"""A run under Slurm's own daemons: it is ended by its time limit, queues itself again, and goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weft
from tests.launch.launching import wait_until
from tests.multihost.slurm import Slurm, cluster, left, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.multihost,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(900),
]

ENDS = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY")
PAUSE_SECONDS = 0.2  # of an epoch: Slurm's signal comes 60 to 100 s after the start, and the run must last longer
MODEL = """
import os, time
from torch import nn

class Slow(nn.Module):
    def __init__(self, num_in, num_out, config):
        super().__init__()
        self.near, self.own = nn.Linear(num_in, num_out), nn.Linear(num_in, num_out)

    def forward(self, graph, x):
        time.sleep(float(os.environ.get("PAUSE_SECONDS", "0")))
        return self.near(graph.aggregate(x, reduce="mean")) + self.own(x)
"""
CONFIG = """
data: {parts}
run: {run}
model: {{name: "slow_model:Slow"}}
workers: 2
threads: 1
seed: 3
train: {{epochs: {epochs}, trace_epochs: 0}}
"""


def _settings(folder: Path, run: str, epochs: int) -> Path:
    file = folder / f"{run}-settings.yaml"
    file.write_text(CONFIG.format(parts=folder / "parts", run=folder / run, epochs=epochs))
    return file


def _submit(slurm: Slurm, folder: Path, settings: Path, *options: str) -> str:
    """Queues a run; returns the job's number."""
    environment = slurm.environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "GLOO_SOCKET_IFNAME": "lo",
        "PAUSE_SECONDS": str(PAUSE_SECONDS),
    }
    command = [sys.executable, "-m", "weft", "submit", "slurm", str(settings), "--nodes", "2", *options]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Submitted batch job "), done.stdout
    return done.stdout.split()[-1]


def _output(folder: Path, run: str) -> str:
    return "\n".join(file.read_text() for file in folder.glob(f"{run}-*.log"))


def _epochs(run: Path) -> int:
    return len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0


def test_a_run_goes_on_after_its_time_limit_to_the_same_weights(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "slow_model.py").write_text(MODEL)
    weft.partition("synthetic:demo", 2, tmp_path / "parts", method="random")
    epochs = 550
    with cluster(tmp_path / "slurm") as slurm:
        job = _submit(slurm, tmp_path, _settings(tmp_path, "run", epochs), "--time", "4m")
        try:
            state = slurm.wait_for(job, ENDS, seconds=700)
        finally:
            print(_output(tmp_path, "run"))
        assert state == "COMPLETED", slurm.logs()
        assert slurm.field(job, "NumNodes") == "2" and slurm.field(job, "TimeLimit") == "00:04:00"
        assert 900 < int(slurm.field(job, "MinMemoryNode").rstrip("M")) < 4000  # MiB, estimated: no --memory
        assert int(slurm.field(job, "Restarts")) >= 1, "the time limit came before the run had ended"
    assert "the run was interrupted" in _output(tmp_path, "run")
    assert left(tmp_path / "slurm") == []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    train = [sys.executable, "-m", "weft", "train", str(_settings(tmp_path, "whole", epochs))]
    subprocess.run(train, check=True, capture_output=True, timeout=300)
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole"))
    assert one["status"] == other["status"] == "finished"
    assert one["epochs"] == other["epochs"] == epochs
    assert one["weights_sha256"] == other["weights_sha256"]


def test_a_job_that_is_cancelled_stays_so(tmp_path: Path) -> None:
    (tmp_path / "slow_model.py").write_text(MODEL)
    weft.partition("synthetic:demo", 2, tmp_path / "parts", method="random")
    with cluster(tmp_path / "slurm") as slurm:
        job = _submit(slurm, tmp_path, _settings(tmp_path, "run", 100_000), "--memory", "2G")
        try:
            wait_until(lambda: _epochs(tmp_path / "run") >= 3, seconds=180)
            slurm.call("scancel", job)
            slurm.wait_for(job, ["CANCELLED"], seconds=60)
            until = time.monotonic() + 120
            while slurm.call("squeue", "-h"):
                assert time.monotonic() < until, "it is still being ended"
                time.sleep(1)
        finally:
            print(_output(tmp_path, "run"), slurm.logs())
        time.sleep(8)  # longer than Slurm waits before it starts what is queued again
        assert slurm.field(job, "JobState") == "CANCELLED" and slurm.field(job, "Restarts") == "0"
        assert [pid for pid in left(tmp_path / "slurm") if "weft" in Path(f"/proc/{pid}/cmdline").read_text()] == []
