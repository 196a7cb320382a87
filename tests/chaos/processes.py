"""The processes of one run, found by a variable that everything it starts inherits."""

import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TOKEN = "WEFT_CHAOS"


@dataclass(frozen=True)
class Process:
    pid: int
    state: str  # R, S, D, T, Z
    command: str
    variables: dict[str, str]


def new_token() -> str:
    return uuid.uuid4().hex


def of_token(token: str) -> list[Process]:
    """The living processes that carry a token; one that has ended and waits for its parent is none."""
    marked = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        folder = Path(entry.path)
        try:
            variables = (folder / "environ").read_bytes()
            if marked not in variables.split(b"\0"):
                continue
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):  # it has ended meanwhile, or is another user's
            continue
        if state != "Z":
            pairs = (item.split("=", 1) for item in variables.decode(errors="replace").split("\0") if "=" in item)
            found.append(Process(int(entry.name), state, command_of(int(entry.name)), dict(pairs)))
    return found


def left(token: str, seconds: float) -> list[Process]:
    """The processes of a run that are there still after so many seconds: none, as soon as there is none."""
    until = time.monotonic() + seconds
    while found := of_token(token):
        if time.monotonic() > until:
            return found
        time.sleep(0.05)
    return []


def children(pid: int) -> list[int]:
    """Processes that a process started, by whichever of its threads."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in file.read_text().split()]
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def name_of(pid: int) -> str:
    """What a process calls itself."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def end_all(token: str, process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a run, so that a failure does not disturb the next one."""
    process.kill()
    process.wait(10)
    for one in of_token(token):
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
