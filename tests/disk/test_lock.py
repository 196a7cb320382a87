"""Locks end with the process that holds them, and name it while they last."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weft.disk import InUse, hold
from weft.disk.lock import try_lock

HOLDER = """
import sys, time
from pathlib import Path
from weft.disk import hold
with hold(Path(sys.argv[1]), Path("results")):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(file: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, str(file)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    file = tmp_path / ".weft-lock"
    process = holder(file)
    try:
        with pytest.raises(InUse, match=rf"results is in use by process {process.pid} on .* since 20\d\d-"):
            hold(file, Path("results")).__enter__()
        assert try_lock(file) is None
        process.kill()  # the file stays, and holds nothing
        process.wait(10)
        assert file.exists()
        with hold(file, Path("results")):
            assert str(os.getpid()) in file.read_text()
        assert not file.exists()
    finally:
        process.kill()
        process.communicate()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    file = tmp_path / ".weft-lock"
    code = f"""
import os, signal
from pathlib import Path
from weft.disk import hold
held = hold(Path({str(file)!r}), Path("results"))
held.__enter__()
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(InUse):
            hold(file, Path("results")).__enter__()
        process.kill()
        process.wait(10)
        os.kill(child, 0)  # it lives
        with hold(file, Path("results")):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()


def test_many_at_once_are_let_in_one_by_one(tmp_path: Path) -> None:
    """Nobody gets in on a file that its holder has removed."""
    code = f"""
import time
from pathlib import Path
from weft.disk import InUse, hold
inside = Path({str(tmp_path / "inside")!r})
done = 0
while done < 20:
    try:
        with hold(Path({str(tmp_path / "lock")!r}), Path("results")):
            inside.mkdir()  # fails if somebody else is in
            inside.rmdir()
            done += 1
    except InUse:
        pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
