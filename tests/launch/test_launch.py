"""The launcher: environment, exit codes, who speaks, ports, signals."""

import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.launching import epoch_reached, launcher, none_left, wait_until, worker_pids
from weft.errors import UserError
from weft.launch.ending import print_failure
from weft.launch.launcher import launch

SCRIPT = "tests.launch.worker_script"


def test_workers_run_to_the_end_in_the_right_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert print_failure(launch(SCRIPT, ["train", str(tmp_path)], 2)).code == 0
    said = capfd.readouterr()
    assert "worker 0 of 2 is done" in said.out, said.err  # worker 0 has the terminal
    assert "worker 1" not in said.out  # and it alone
    for worker in (0, 1):
        assert (tmp_path / f"{worker}.done").exists()
        variables = dict(line.split("=", 1) for line in (tmp_path / f"{worker}.env").read_text().splitlines())
        assert variables["LOCAL_RANK"] == str(worker)
        assert variables["WORLD_SIZE"] == "2"
        assert variables["THP_MEM_ALLOC_ENABLE"] == "1"
        assert int(variables["OMP_NUM_THREADS"]) >= 1
        assert variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert none_left(tmp_path)


def test_what_a_killed_launcher_left_goes_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with launcher(tmp_path, 2, "forever") as process:
        wait_until(lambda: epoch_reached(tmp_path, 1, 1))
        process.kill()
        process.wait(10)
        wait_until(lambda: none_left(tmp_path), seconds=60)
    assert len(list(temporary.glob("weft-run-*"))) == 1
    with launcher(tmp_path, 1, "mistake") as process:
        assert process.wait(60) == 2
    assert list(temporary.glob("weft-run-*")) == []


@pytest.mark.parametrize("deed", ["mistake", "mistake-on-one"])
def test_a_users_mistake_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str], deed: str) -> None:
    code = print_failure(launch(SCRIPT, [deed, str(tmp_path)], 2, threads_per_worker=1)).code
    said = capfd.readouterr().err
    assert code == 2, said
    sentence = "the graph has no vertices" if deed == "mistake" else "part 2 was altered"
    assert said.count(sentence) == 1 and said.splitlines()[-1].startswith(f"error: {sentence}")
    assert "Traceback" not in said
    assert none_left(tmp_path)


def test_a_worker_that_fails_is_named_with_its_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = print_failure(launch(SCRIPT, ["error-on-one", str(tmp_path)], 2, threads_per_worker=1)).code
    said = capfd.readouterr().err
    assert code == 1, said
    assert said.splitlines()[-1].startswith("error: worker 1 failed during epoch 1: ZeroDivisionError: by nothing;")
    assert "about to divide" in said
    assert none_left(tmp_path)


@pytest.mark.parametrize("hard", [40, 4096])
def test_few_descriptors_are_asked_for_or_refused_before_anybody_waits(tmp_path: Path, hard: int) -> None:
    command = [sys.executable, "-m", "weft", "train", "--data", "synthetic:tiny", "--workers", "2", "--epochs", "1"]
    ended = subprocess.run(
        [*command, "--run", str(tmp_path / "run"), "--set", "threads=1"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard)),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert ended.returncode == (2 if hard == 40 else 0), ended.stderr
    assert ("ulimit -n 72" in ended.stderr) == (hard == 40)
    assert (tmp_path / "run").exists() == (hard > 40)


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"^port {port} is in use by another program: choose another one"):
            launch(SCRIPT, ["train", str(tmp_path)], 2, port=port)
    assert worker_pids(tmp_path) == []
    with pytest.raises(UserError, match="port 99999 cannot be opened"):
        launch(SCRIPT, ["train", str(tmp_path)], 2, port=99999)


def test_a_run_needs_workers() -> None:
    with pytest.raises(UserError, match="at least one worker"):
        launch(SCRIPT, [], 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_let_workers_write_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    with launcher(tmp_path, 2, "leave") as process:
        wait_until(lambda: epoch_reached(tmp_path, 1, 3))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    checkpoints = [(tmp_path / f"{worker}.checkpoint").read_text() for worker in (0, 1)]
    assert checkpoints[0] == checkpoints[1]
    assert "error" not in err
    assert none_left(tmp_path)


def test_workers_that_do_not_leave_are_ended(tmp_path: Path) -> None:
    with launcher(tmp_path, 2, "stop", "60", "2") as process:  # worker 1 stops itself: it cannot leave
        wait_until(lambda: (tmp_path / "fired").exists())
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        process.communicate(timeout=60)
    assert time.monotonic() - begin < 40  # of the 60 that the deadline is
    assert process.returncode != 0
    assert none_left(tmp_path)
