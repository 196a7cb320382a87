"""Starting the launcher in tests, waiting for what workers write, and making sure that nothing is left running."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def launcher(folder: Path, workers: int, deed: str, *rest: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.launch.run_launch", str(workers), deed, str(folder), *rest]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in worker_pids(folder):
            if alive(pid):
                os.kill(pid, 9)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def epoch_reached(folder: Path, worker: int, epoch: int) -> bool:
    try:
        return int((folder / f"{worker}.epoch").read_text() or -1) >= epoch
    except FileNotFoundError:
        return False


def worker_pids(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.glob("*.pid") if file.read_text()]


def alive(pid: int) -> bool:
    try:
        # A zombie has ended: only its parent has not looked yet.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def none_left(folder: Path) -> bool:
    return not any(alive(pid) for pid in worker_pids(folder))
