"""SIGKILL of workers, launchers, METIS, functions: the run ends in a sentence, leaves nothing, and can go on."""

import itertools
import random

import pytest

from tests.chaos.counting import SEED, Round, check, rounds, tell
from tests.chaos.kills import PHASES, run_chain
from tests.chaos.runs import CASES, undisturbed

SHARES = 4  # of the rounds, so that several processes may play at a time
FEW = 1  # of each share


@pytest.mark.timeout(max(1200, 120 * rounds(FEW, 1 / SHARES)))
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_runs_end_in_a_sentence_leave_nothing_and_go_on(share: int) -> None:
    wanted, played = rounds(FEW, 1 / SHARES), list[Round]()
    for number in itertools.count(share, SHARES):
        if len(played) >= wanted:
            break
        # Few rounds take one case after the other, many go through all of them again and again.
        case = list(CASES)[(number + number // len(CASES) + SEED) % len(CASES)]
        for one in run_chain(case, random.Random(f"{SEED} {number}").randrange(10**6), undisturbed(case)):
            played.append(one)
            tell(f"kills, share {share}", len(played), wanted, sum(bool(one.failures) for one in played))
    check(played)
    if wanted >= 100:  # a checkpoint takes too short to be hit for certain
        assert set(PHASES) - {"checkpoint"} <= {one.hit for one in played}
