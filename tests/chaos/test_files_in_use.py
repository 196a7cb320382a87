"""Runs and outputs that two want at once, and preparations that end half-way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.launching import ROOT, alive, wait_until
from weft.errors import UserError
from weft.training.runfolder import RunFolder
from weft.training.runlock import LOCK, hold_run


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "weft", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def metis_of(pid: int) -> int | None:
    for child in children(pid):
        try:
            if b"metis_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        except FileNotFoundError:
            pass
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_preparation_that_is_ended_leaves_no_metis_and_nothing_half_made(tmp_path: Path, number: int) -> None:
    pytest.importorskip("pymetis")
    run = ["train", "--data", "synthetic:tiny?nodes=60000,degree=24", "--workers", "2", "--epochs", "1"]
    run += ["--run", "run", "--set", "partition.method=metis"]
    process = start(tmp_path, *run)
    try:
        wait_until(lambda: metis_of(process.pid) is not None or process.poll() is not None, seconds=120)
        metis = metis_of(process.pid)
        assert metis is not None, process.communicate()
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err
        wait_until(lambda: not alive(metis), seconds=60)
        if number == signal.SIGTERM:
            assert process.returncode == 143
            assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.communicate()
    if number == signal.SIGKILL:  # the next start clears up
        again = start(tmp_path, "partition", "synthetic:tiny", "--parts", "2", "--method", "metis", "--out", "parts")
        _, err = again.communicate(timeout=120)
        assert again.returncode == 0, err
        assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("weft-metis")]
        with hold_run(tmp_path / "run"):
            assert not list((tmp_path / "run").glob(".*partial"))


def test_a_run_that_goes_on_is_not_resumed_nor_overwritten_beside_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--data", "synthetic:tiny", "--run", "run", "--epochs", "100000"]
    process = start(tmp_path, "train", *settings)
    try:
        metrics = run / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, seconds=120)
        others = [start(tmp_path, "train", *settings, *rest) for rest in ([], ["--resume"], ["--overwrite"])]
        for other in others:
            _, err = other.communicate(timeout=120)
            assert other.returncode == 2 and "Traceback" not in err, err
            assert f"in use by process {process.pid} on" in err, err
        assert process.poll() is None
        assert len(RunFolder.open(run).metrics()) >= 2  # readers need no lock
        process.kill()
        process.communicate()
        assert (run / LOCK).exists()
        with hold_run(run):  # nobody holds it any more
            pass
    finally:
        process.kill()
        process.communicate()


def test_a_folder_of_others_with_a_config_is_never_overwritten_as_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("my: project\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.pt").write_text("precious")
    with pytest.raises(UserError, match="was not written by a run of weft"):
        RunFolder.create(tmp_path, {}, overwrite=True)
    assert (tmp_path / "checkpoints" / "mine.pt").exists()


def test_altered_settings_and_results_are_found(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {"seed": 1}) as run:
        run.append({"epoch": 1, "train_loss": 0.5})
        run.append({"epoch": 2, "train_loss": 0.25})
        run.trace_file.write_text('{"traceEvents": []}')
        run.write_summary({"train_loss": 0.25, "best": [float("nan"), 1]})
    assert run.summary() == {"train_loss": 0.25, "best": [None, 1]} and len(run.metrics()) == 2
    for file, old, new, read in (
        (run.config_file, "seed: 1", "seed: 2", run.config),
        (run.metrics_file, "0.5", "0.7", run.metrics),
        (run.trace_file, "[]", "[3]", run.trace),
        (run.summary_file, "0.25", "0.35", run.summary),
    ):
        text = file.read_text()
        file.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=rf"{file.name} is damaged or was altered"):
            read()
        file.write_text(text)
        read()
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text(lines[0])  # whole lines are missing
    with pytest.raises(UserError, match="altered since the run ended"):
        run.metrics()
    assert json.loads(run.summary_file.read_text())["train_loss"] == 0.25


def test_two_runs_without_a_name_get_two_folders(tmp_path: Path) -> None:
    both = [start(tmp_path, "train", "--data", "synthetic:tiny", "--epochs", "1") for _ in range(2)]
    begin = time.monotonic()
    for process in both:
        _, err = process.communicate(timeout=max(1.0, 200 - (time.monotonic() - begin)))
        assert process.returncode == 0, err
    assert len(list((tmp_path / "runs").iterdir())) == 2
