"""Disks that fill up, and folders that may not be written to: one sentence, nothing half-written, and a way on."""

import math
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.commands import Command, partition, train
from tests.chaos.counting import SEED, Round, check, rounds

SHARE = 0.1
FEW = 4
ENOUGH_BYTES = {"ingest": 1 << 16, "partition": 3 << 16, "train on 1": 1 << 21, "train on 2": 1 << 21}
KINDS = tuple(ENOUGH_BYTES)
TOO_FEW_BYTES = 1 << 14  # for any of them


def _why_not() -> str | None:
    if os.name != "posix" or os.geteuid() != 0:
        return "mounting a small disk needs root"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"mounts are not allowed here: {tried.stderr.strip()}"


REASON = _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def _edges(folder: Path) -> Path:
    file = folder / "edges.csv"
    lines = (f"{i},{(i * 7 + 3) % 3000}\n{i},{(i * 11 + 5) % 3000}" for i in range(3000))
    file.write_text("source,target\n" + "\n".join(lines) + "\n")
    return file


def _arguments(kind: str, folder: Path, disk: Path) -> list[str]:
    if kind == "ingest":
        return ["ingest", str(_edges(folder)), "-o", str(disk / "graph")]
    if kind == "partition":
        return partition(disk / "parts")
    return train(disk / "run", int(kind[-1]))


def _space_left(number: int, folder: Path, also_temporary: bool) -> Round:
    """A command on a disk of some random size; then the disk grows, and the same command or --resume succeeds."""
    random_ = random.Random(f"disk {SEED} {number}")
    kind = KINDS[number % len(KINDS)]
    most = TOO_FEW_BYTES if number < len(KINDS) else ENOUGH_BYTES[kind]
    size = int(2 ** random_.uniform(12, math.log2(most)))
    one = Round("full disk", kind, f"{size} bytes, {also_temporary=}")
    with small_disk(folder, size) as disk:
        variables = {"TMPDIR": str(disk)} if also_temporary else {}
        command = Command(_arguments(kind, folder, disk), folder, variables)
        code = command.end(one)
        if code:
            one.hit = "full"
            _judge(kind, disk, command, one)
            _remount(disk, "size=100m")
            arguments = _arguments(kind, folder, disk)
            if (disk / "run" / "config.yaml").exists():
                arguments = ["train", "--run", str(disk / "run"), "--resume"]
            if Command(arguments, folder, variables).end(one):
                one.fail("dead end", f"with room enough: {command.said()}")
    return one


def _judge(kind: str, disk: Path, command: Command, one: Round) -> None:
    if "the disk is full" not in command.said():
        one.fail("reason", command.said())
    found = sorted(path.name for path in disk.iterdir() if not path.name.startswith("torch"))
    expected = [["run"], []] if kind.startswith("train") else [[]]
    if found not in expected:
        one.fail("leftovers", " ".join(found))


@pytest.mark.timeout(max(1200, 120 * rounds(FEW, SHARE)))
def test_a_full_disk_is_one_sentence_and_no_dead_end(tmp_path: Path) -> None:
    played = [_space_left(number, tmp_path / str(number), number % 3 == 2) for number in range(rounds(FEW, SHARE))]
    check(played)
    assert all(one.hit for one in played[: len(KINDS)])


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_a_folder_that_may_not_be_written_to_is_one_sentence(tmp_path: Path, kind: str) -> None:
    one = Round("read-only", kind, "")
    with small_disk(tmp_path, 1 << 20) as disk:
        _remount(disk, "ro")
        command = Command(_arguments(kind, tmp_path, disk), tmp_path)
        assert command.end(one) == 2
    one.hit = "read-only"
    assert "read-only" in command.said().lower() and str(disk) in command.said()
    check([one])
