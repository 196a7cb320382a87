"""Too few file descriptors: a sentence, or success, and never a hang."""

import random
import resource
from pathlib import Path

import pytest

from tests.chaos.commands import Command, partition, train
from tests.chaos.counting import SEED, Round, check, rounds

SHARE = 0.1
FEW = 2


def _limited(number: int, folder: Path) -> Round:
    random_ = random.Random(f"descriptors {SEED} {number}")
    kind, limit = ("train on 2", "partition", "train on 1", "train on 3")[number % 4], random_.randint(8, 20)
    one = Round("descriptors", kind, f"at most {limit}")
    folder.mkdir()
    arguments = partition(folder / "parts") if kind == "partition" else train(folder / "run", int(kind[-1]))
    code = Command(arguments, folder, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))).end(
        one
    )
    if code:
        one.hit = "refused"
    return one


@pytest.mark.timeout(max(1200, 60 * rounds(FEW, SHARE)))
def test_too_few_descriptors_are_one_sentence(tmp_path: Path) -> None:
    check([_limited(number, tmp_path / str(number)) for number in range(rounds(FEW, SHARE))])
