"""Commands that want the same folder at once: one gets it, the others say so, and what lies there is whole."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.commands import Command, partition, train
from tests.chaos.counting import SEED, Round, check, rounds
from weft.partitioning import load_shard, read_partition

SHARE = 0.1
FEW = 2


def _at_once(number: int, folder: Path) -> Round:
    random_ = random.Random(f"concurrent {SEED} {number}")
    kind = ("train", "partition", "overwrite")[number % 3]
    pause_seconds = random_.choice([0.0, random_.uniform(0, 3)])
    one = Round("concurrent", kind, f"{pause_seconds:.3f} s apart")
    folder.mkdir()
    wanted = folder / "wanted"
    commands = {
        "train": [train(wanted, 1), train(wanted, 2)],
        "partition": [partition(wanted), partition(wanted)],
        "overwrite": [partition(wanted, "--overwrite"), partition(wanted, "--overwrite")],
    }[kind]
    codes = _run_all(commands, folder, pause_seconds, one)
    one.hit = "both done" if codes == [0, 0] else "one refused"
    if kind == "overwrite":
        if 0 not in codes:
            one.fail("nobody", str(codes))
    elif sorted(codes) != [0, 2]:
        one.fail("codes", str(codes))
    if kind == "train":
        if not (wanted / "summary.json").exists():
            one.fail("lost", "no summary")
        elif (wanted / "metrics.jsonl").read_text().count("\n") != 4:
            one.fail("mixed", (wanted / "metrics.jsonl").read_text())
    else:
        for part in range(read_partition(wanted).num_parts):
            load_shard(wanted, part, 2)  # verifies
    extra = sorted(path.name for path in folder.iterdir() if path != wanted and not path.name.startswith("command-"))
    if extra:
        one.fail("leftovers", " ".join(extra))
    return one


def _run_all(commands: Sequence[list[str]], folder: Path, pause_seconds: float, one: Round) -> list[int]:
    running = []
    for number, command in enumerate(commands):
        running.append(Command(command, folder, name=f"command-{number}"))
        time.sleep(pause_seconds)
    return [command.end(one) for command in running]


@pytest.mark.timeout(max(1200, 60 * rounds(FEW, SHARE)))
def test_of_two_commands_that_want_one_folder_one_gets_it(tmp_path: Path) -> None:
    check([_at_once(number, tmp_path / str(number)) for number in range(rounds(FEW, SHARE))])
