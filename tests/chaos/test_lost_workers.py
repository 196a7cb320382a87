"""Workers and launchers that die or stop: everybody else ends, soon, and the one is named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.launch.launching import ROOT, alive, epoch_reached, launcher, none_left, wait_until, worker_pids

SOON_SECONDS = 30.0  # seconds on an idle machine; the deadlines of these runs are at least twice as long


def test_a_killed_worker_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with launcher(tmp_path, 3, "die") as process:
        wait_until(lambda: (tmp_path / "fired").exists())
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert (tmp_path / "fired").read_text() == "SIGKILL"
    assert time.monotonic() - begin < SOON_SECONDS
    assert process.returncode == 1, err
    assert "worker 2 was killed by SIGKILL during epoch 12" in err
    assert "Traceback" not in err
    assert len(worker_pids(tmp_path)) == 4  # three workers and the child of the one that died
    assert none_left(tmp_path)


def test_a_stopped_worker_ends_the_run_within_the_deadline(tmp_path: Path) -> None:
    with launcher(tmp_path, 3, "stop", "6") as process:
        wait_until(lambda: (tmp_path / "fired").exists())
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert (tmp_path / "fired").read_text() == "SIGSTOP"
    assert time.monotonic() - begin < 6 + SOON_SECONDS  # the deadline, and the launcher's settling on a busy machine
    assert process.returncode == 1, err
    assert "lost worker 2 during epoch" in err
    assert none_left(tmp_path)


def test_a_worker_killed_while_minibatches_are_planned_ahead_ends_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "weft", "train", "--data", "synthetic:demo", "--model", "sage", "--strategy",
               "batchgnn", "--workers", "3", "--epochs", "100000", "--run", str(run), "--set", "threads=1"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        metrics = run / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, seconds=120)
        workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(workers) == 3
        os.kill(workers[1], signal.SIGKILL)
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert time.monotonic() - begin < SOON_SECONDS
    assert process.returncode == 1, err
    assert "was killed by SIGKILL" in err and "Traceback" not in err
    assert not any(alive(pid) for pid in workers)


def test_a_killed_launcher_takes_its_workers_along(tmp_path: Path) -> None:
    with launcher(tmp_path, 2, "forever") as process:
        wait_until(lambda: epoch_reached(tmp_path, 1, 3))
        pids = worker_pids(tmp_path)
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_until(lambda: none_left(tmp_path), seconds=SOON_SECONDS)
