"""Runs that are killed at any point: they go on to the weights of one that was not, by --resume or by themselves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import ROOT, alive, wait_until
from weft.config import make_config
from weft.errors import UserError
from weft.run import start
from weft.training.generation import generations

EPOCHS = 8
SETTINGS: dict[str, Any] = {
    "data": "synthetic:tiny", "workers": 2, "threads": 1, "seed": 3, "model": {"name": "gcn", "hidden": 4},
    "train": {"epochs": EPOCHS, "checkpoint_every": 2},
}  # fmt: skip

# What a worker does when it comes to a point, once, by whoever comes first: it ends with SIGKILL.
FATAL = """
import os, signal
from importlib import import_module
from pathlib import Path
import weft.launch.worker

checkpoint, loop = import_module("weft.training.checkpoint"), import_module("weft.training.loop")

def kill(point, epoch=None):
    if point == os.environ["FATAL_POINT"] and (epoch is None or epoch == int(os.environ["FATAL_EPOCH"])):
        if os.environ["RANK"] == os.environ["FATAL_RANK"]:
            left = Path(os.environ["FATAL_COUNT"])
            count = len(left.read_text()) if left.exists() else 0
            if count < int(os.environ["FATAL_TIMES"]):
                left.write_text("x" * (count + 1))
                os.kill(os.getpid(), signal.SIGKILL)

def before(module, name, point, epoch_of=lambda *args: None):
    real = getattr(module, name)
    def deadly(*args, **more):
        kill(point, epoch_of(*args))
        return real(*args, **more)
    setattr(module, name, deadly)

before(weft.launch.worker, "open_shard", "start-up")
before(loop, "_epoch", "epoch", lambda task, optimiser, epoch, stop: epoch)
before(checkpoint, "own_state", "checkpoint")
before(checkpoint, "_write_manifest", "manifest")
before(checkpoint, "_swap", "swap")
before(weft.launch.worker, "summarise", "end")
main = import_module("weft.launch.worker_main").main
"""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = tmp_path_factory.mktemp("whole") / "run"
    return str(start(make_config({**SETTINGS, "run": str(run)}), quiet=True).summary["weights_sha256"])


def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, times: int, epoch: int, rank: int) -> None:
    """Workers that end at this point, so many times in all."""
    (tmp_path / "fatal_worker.py").write_text(FATAL)
    monkeypatch.setattr("weft.results.WORKER", "fatal_worker")
    for name, value in {"POINT": point, "TIMES": times, "EPOCH": epoch, "RANK": rank, "COUNT": tmp_path / "x"}.items():
        monkeypatch.setenv(f"FATAL_{name}", str(value))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")


@pytest.mark.parametrize(
    ("point", "rank", "epoch"),
    [("start-up", 1, 0), ("epoch", 1, 1), ("swap", 0, 0), ("end", 1, 0)],
)
def test_killed_anywhere_it_goes_on_by_itself(
    point: str, rank: int, epoch: int, wanted: str, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    fatal(tmp_path, monkeypatch, point, 1, epoch, rank)
    config = make_config({**SETTINGS, "run": str(tmp_path / "run")})
    found = start(config, quiet=True, restarts=2)
    said = capfd.readouterr().err
    assert re.search(rf"^restart 1 of 2 in 1 s: worker {rank} was killed by SIGKILL during \w+", said, re.M), said
    assert said.count("restart ") == 1 and "Traceback" not in said
    assert found.summary["weights_sha256"] == wanted
    assert [record["epoch"] for record in found.metrics] == list(range(1, EPOCHS + 1))
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["epoch-000006", "epoch-000008"], "nothing half-written stays"


def test_restarts_are_counted_whether_they_got_on_or_not(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    from weft import RunFailed

    pauses: list[float] = []
    sleep = time.sleep

    def note_or_sleep(seconds: float) -> None:
        """The launcher's own short waits go on; those between two starts are left out."""
        if seconds >= 1:
            pauses.append(seconds)
        else:
            sleep(seconds)

    fatal(tmp_path, monkeypatch, "start-up", 99, 0, 1)
    monkeypatch.setattr("weft.run.LONGEST_PAUSE_SECONDS", 3)
    monkeypatch.setattr("weft.run.time.sleep", note_or_sleep)
    config = make_config({**SETTINGS, "run": str(tmp_path / "run")})
    with pytest.raises(RunFailed) as failed:
        start(config, quiet=True, restarts=3)
    said = capfd.readouterr().err
    assert failed.value.code == 1
    assert pauses == [1, 2, 3], "they double, up to the longest"
    for turn, pause in enumerate(pauses, 1):
        assert said.count(f"restart {turn} of 3 in {pause} s: worker 1 was killed") == 1
    assert str(failed.value).endswith("all other workers were ended")
    assert len((tmp_path / "x").read_text()) == 4


# A choice among plans follows measured speeds, so that another start may choose another one.
CHOOSES_ONCE = """
compared = weft.launch.worker.estimate_plans

def once(*args):
    assert not Path(os.environ["FATAL_COUNT"]).exists(), "plans are compared again"
    return compared(*args)

weft.launch.worker.estimate_plans = once
"""


def test_a_restarted_run_keeps_what_auto_chose(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    fatal(tmp_path, monkeypatch, "epoch", 1, 4, 1)
    start_worker = "run_worker(import_module"
    worker = tmp_path / "fatal_worker.py"
    worker.write_text(FATAL.replace(start_worker, CHOOSES_ONCE + start_worker))
    config = make_config({**SETTINGS, "strategy": "auto", "run": str(tmp_path / "run")})
    found = start(config, quiet=True, restarts=1)
    assert capfd.readouterr().err.count("restart 1 of 1 ") == 1
    assert found.config.strategy != "auto" and found.summary["epochs"] == EPOCHS


def test_no_restart_after_a_mistake(tmp_path: Path, capfd: Any) -> None:
    settings = {**SETTINGS, "workers": 2, "model": {"name": "rgcn"}, "run": str(tmp_path / "run")}
    with pytest.raises(UserError, match="--relation-column"):
        start(make_config(settings), quiet=True, restarts=5)
    assert "restart" not in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_is_not_started_again_and_the_whole_command_may_be_killed(
    wanted: str, tmp_path: Path
) -> None:
    """SIGTERM, then SIGKILL of the command before the first checkpoint, then --resume with the same command."""
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(json.dumps({**SETTINGS, "run": str(run), "train": {"epochs": 100_000, "checkpoint_every": 0}}))
    command = [sys.executable, "-P", "-m", "weft", "train", str(config), "--resume", "--restarts", "3"]
    process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        metrics = run / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, seconds=120)
        workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        wait_until(lambda: not any(alive(pid) for pid in workers), seconds=30)
    finally:
        process.kill()
        process.communicate()
    assert not generations(run / "checkpoints")
    before = metrics.stat().st_ino
    process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: metrics.stat().st_ino != before and metrics.read_text().count("\n") >= 2, seconds=120)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143 and "restart" not in err, err
    assert "has no checkpoint yet: it starts from the beginning" in err
    stopped = json.loads((run / "summary.json").read_text())["epochs"]
    assert generations(run / "checkpoints")[-1].name == f"epoch-{stopped:06d}"
