"""The wall clock steps while a run goes on: nothing that a run decides depends on it."""

import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.counting import SEED, Round, check, rounds
from tests.chaos.processes import end_all
from tests.chaos.runs import CASES, ENDS_SECONDS, Attempt, Reference, num_epochs, undisturbed

SHARE = 0.1
FEW = 1
CLOCK = Path(__file__).parent / "clock"
MOMENTS: dict[str, Callable[[Attempt], bool]] = {  # things that come in every run, so that every step comes in time
    "worker starts": lambda attempt: attempt.worker(0) is not None,
    "function starts": lambda attempt: attempt.function() is not None,
    "first epoch": lambda attempt: any("epoch" in step for step in attempt.steps()),
    "later epoch": lambda attempt: num_epochs(attempt.run) >= 2,
}


def _stepped(number: int, reference: Reference) -> Round:
    """A run with functions, whose messages are sealed for a while only."""
    random_ = random.Random(f"clock {SEED} {number}")
    ahead = random_.choice([-86400, -300, 300, 86400])
    moment = list(MOMENTS)[number % len(MOMENTS)]
    one = Round("clock", moment, f"{number}: {ahead:+d} s")
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        seen = Path(name) / "seen"
        seen.mkdir()
        variables = {"PYTHONPATH": str(CLOCK), "WEFT_CLOCK_STEP": f"{ahead} {seen}"}
        attempt = Attempt(CASES["dorylus"], Path(name), resumes=False, variables=variables)
        try:
            if attempt.wait_for(lambda: MOMENTS[moment](attempt)):
                (seen / "now").touch()
            code = attempt.process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            one.fail("hang", attempt.error())
            return one
        finally:
            end_all(attempt.token, attempt.process)
        if len(os.listdir(seen)) >= 2:  # the mark, and a process that has asked for the time since
            one.hit = f"{ahead:+d} s"
        if code:
            one.fail("exit code", f"{code}: {attempt.error()}")
        elif attempt.digest() != reference.digest:
            one.fail("weights", "other weights than those of a run whose clock did not step")
    return one


@pytest.mark.timeout(max(1200, 60 * rounds(FEW, SHARE)))
def test_a_step_of_the_clock_changes_nothing() -> None:
    reference = undisturbed("dorylus")
    played = [_stepped(number, reference) for number in range(rounds(FEW, SHARE))]
    check(played)
    assert played[0].hit
