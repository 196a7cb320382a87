"""How workers come to be: one process imports torch and forks them, and whatever happens meanwhile leaves nobody."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.processes import children, name_of
from tests.launch.launching import ROOT, alive, launcher, none_left, wait_until, worker_pids
from weft.launch.ending import print_failure
from weft.launch.launcher import launch

SCRIPT = "tests.launch.worker_script"
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no worker is forked")


def starter_of(process: subprocess.Popen[str]) -> list[int]:
    return [pid for pid in children(process.pid) if name_of(pid) == "weft starter"]


@linux
def test_workers_are_children_of_the_launcher_and_have_names(tmp_path: Path) -> None:
    with launcher(tmp_path, 3, "forever") as process:
        wait_until(lambda: len(worker_pids(tmp_path)) == 3)
        assert sorted(worker_pids(tmp_path)) == sorted(children(process.pid))
        names = {name_of(int((tmp_path / f"{worker}.pid").read_text())) for worker in range(3)}
        assert names == {"weft worker 0", "weft worker 1", "weft worker 2"}
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        wait_until(lambda: none_left(tmp_path), seconds=60)


@linux
@pytest.mark.parametrize("victim", ["starter", "launcher"])
def test_who_dies_while_torch_is_imported_leaves_nobody(tmp_path: Path, victim: str) -> None:
    with launcher(tmp_path, 2, "forever") as process:
        wait_until(lambda: bool(starter_of(process)))
        (starter,) = starter_of(process)
        os.kill(starter if victim == "starter" else process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        if victim == "starter":
            assert process.returncode == 1
            assert err.startswith("error: worker 0 was killed by SIGKILL during start"), err
        wait_until(lambda: not alive(starter), seconds=30)
    assert worker_pids(tmp_path) == []  # none has come to work


@linux
def test_a_signal_while_torch_is_imported_ends_the_start(tmp_path: Path) -> None:
    with launcher(tmp_path, 2, "forever") as process:
        wait_until(lambda: bool(starter_of(process)))
        (starter,) = starter_of(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert not alive(starter) and worker_pids(tmp_path) == [] and "error" not in err


@linux
def test_a_starter_that_stays_stopped_is_not_waited_for(tmp_path: Path) -> None:
    with launcher(tmp_path, 2, "forever", "3") as process:
        wait_until(lambda: bool(starter_of(process)))
        (starter,) = starter_of(process)
        os.kill(starter, signal.SIGSTOP)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "the workers did not start within the deadline of 3 s" in err, err
    assert not alive(starter) and worker_pids(tmp_path) == []


def test_a_module_that_cannot_be_imported_is_told_with_its_trace(capfd: pytest.CaptureFixture[str]) -> None:
    ending = print_failure(launch("tests.launch.no_such_module", [], 2))
    assert ending.code == 1 and ending.kind == "error"
    said = capfd.readouterr().err
    assert "error: worker 0 failed during start: ModuleNotFoundError: No module named" in said, said


@pytest.mark.parametrize("forks", [True, False])
def test_workers_that_are_forked_and_others_do_the_same(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("weft.launch.processes.FORKS", forks)
    assert print_failure(launch(SCRIPT, ["train", str(tmp_path)], 2, threads_per_worker=1)).code == 0
    assert "worker 0 of 2 is done" in capfd.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["0.done", "1.done"]
    assert none_left(tmp_path)
    assert print_failure(launch(SCRIPT, ["error-on-one", str(tmp_path)], 2, threads_per_worker=1)).code == 1
    assert "worker 1 failed during epoch 1: ZeroDivisionError" in capfd.readouterr().err
    assert none_left(tmp_path)


@linux
def test_imports_start_no_thread_that_a_fork_would_lose() -> None:
    """OpenMP's threads begin with the first kernel; whoever forks after that waits for them without end."""
    code = "import os, weft.launch.worker_main; print(len(os.listdir('/proc/self/task')))"
    variables = os.environ | {"OMP_NUM_THREADS": "16", "OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], env=variables, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(said.stdout) < 16


def test_nothing_waits_for_a_worker_that_does_not_read(tmp_path: Path) -> None:
    """What is handed over through a pipe is larger than the pipe, and nobody reads it."""
    handed = bytes(1 << 22)
    assert launch(SCRIPT, ["train", str(tmp_path)], 2, threads_per_worker=1, handed=handed).code == 0


@linux
@pytest.mark.parametrize("verb", ["train", "plan"])
def test_a_command_imports_torch_once(verb: str, tmp_path: Path) -> None:
    """Its workers are forked from it before anything has run there; a process of Python's that imports is seen."""
    command = [sys.executable, "-m", "weft", verb, "--data", "synthetic:tiny", "--workers", "2", "--set", "threads=1"]
    command += ["--run", str(tmp_path / "run"), "--epochs", "2"] if verb == "train" else []
    trace = tmp_path / "imports"
    (tmp_path / "sitecustomize.py").write_text(f"import os; open({str(trace)!r}, 'a').write(f'{{os.getpid()}} ')")
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    metis = 1  # a process of Python's, which imports no torch
    assert len(set(trace.read_text().split())) <= 1 + metis


def test_whoever_has_run_something_is_not_forked(tmp_path: Path) -> None:
    """Threads of OpenMP are lost in a fork, and the first kernel in the child would wait for them."""
    code = """
import sys
from weft.launch import processes
import torch
processes.note_imports()
torch.ones(1 << 20).add(1)  # OpenMP's threads are there
processes.hold_starter()
assert processes._held is None
"""
    variables = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-P", "-c", code], env=variables, cwd=ROOT, check=True)
