"""Processes of a run that are stopped (SIGSTOP) for a while, or for good, at any moment."""

import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.counting import SEED, Round, check, rounds
from tests.chaos.processes import end_all, left
from tests.chaos.runs import CASES, ENDS_SECONDS, GONE_SECONDS, Attempt, Reference, num_epochs, undisturbed

SHARE = 0.1
FEW = 1
PRESETS = ("dorylus", "full", "batchgnn")


def _stopped_for_a_while(number: int, preset: str, reference: Reference) -> Round:
    """Somebody is stopped and goes on: nobody minds, and the weights are the same."""
    random_ = random.Random(f"stops {SEED} {number}")
    victim = random_.choice(["worker", "launcher", *["function"] * (preset == "dorylus")])
    pause_seconds, worker = random_.uniform(0.2, 3.0), random_.randrange(CASES[preset].workers)
    one = Round("stop and go on", preset, f"{number}: {victim} {worker} for {pause_seconds:.1f} s", victim=victim)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        attempt = Attempt(CASES[preset], Path(name), resumes=False)
        try:
            find = {"worker": lambda: attempt.worker(worker), "launcher": lambda: attempt.process.pid,
                    "function": attempt.function}[victim]  # fmt: skip
            if attempt.wait_for(lambda: find() is not None):
                # A function starts when its worker has started. A start that takes less time than the reference's
                # did, because the machine is less busy now, is over with the first epoch: many come after it.
                start_seconds = 0.3 if victim == "function" else reference.start_seconds
                attempt.wait_for(lambda: num_epochs(attempt.run) > 0, random_.random() * start_seconds)
                pid, phase = find(), attempt.phase()
                if pid is not None and attempt.process.poll() is None:
                    with suppress(ProcessLookupError):  # it has ended in this instant
                        os.kill(pid, signal.SIGSTOP)
                        one.hit = phase
                        time.sleep(pause_seconds)
                        os.kill(pid, signal.SIGCONT)
            _judge(attempt, reference, one)
        finally:
            end_all(attempt.token, attempt.process)
    return one


def _judge(attempt: Attempt, reference: Reference, one: Round) -> None:
    try:
        code = attempt.process.wait(ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        one.fail("hang", attempt.error())
        return
    if code:
        one.fail("exit code", f"{code}: {attempt.error()}")
    elif attempt.digest() != reference.digest:
        one.fail("weights", "other weights than those of the run that nobody disturbed")
    if stayed := left(attempt.token, GONE_SECONDS):
        one.fail("orphan", "; ".join(f"{process.pid} {process.command}" for process in stayed))


@pytest.mark.timeout(max(1200, 60 * rounds(FEW, SHARE)))
def test_a_process_that_is_stopped_for_a_while_changes_nothing() -> None:
    presets = PRESETS[: rounds(FEW, SHARE)]
    references = {preset: undisturbed(preset) for preset in presets}
    played = []
    for number in range(rounds(FEW, SHARE)):
        preset = presets[number % len(presets)]
        played.append(_stopped_for_a_while(number, preset, references[preset]))
    check(played)
    assert any(one.hit for one in played)
