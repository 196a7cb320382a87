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


def write_whole(file: Path, text: str) -> None:
    """Whoever reads the file meanwhile finds the text of before or this one, never an empty file."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def meet(folder: Path) -> None:
    """Waits until every worker of the run has come here.

    Importing torch takes seconds, on a busy machine very different ones. A run whose deadline is shorter than that
    begins when all have done it: what the deadline bounds is then the fault alone.
    """
    (folder / f"{os.environ.get('RANK', '0')}.here").touch()
    wait_until(lambda: len(list(folder.glob("*.here"))) >= int(os.environ.get("WORLD_SIZE", "1")))


def wait_until(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def epoch_reached(folder: Path, worker: int, epoch: int) -> bool:
    return epoch_of(folder, worker) >= epoch


def epoch_of(folder: Path, worker: int) -> int:
    """The epoch that a worker has ended last; -1: none."""
    try:
        return int((folder / f"{worker}.epoch").read_text())
    except FileNotFoundError:
        return -1


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
