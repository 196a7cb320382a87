"""Kills at chosen moments: what dies, when, and what must hold afterwards.

A chain is one run: it is started, something of it is killed, it is started again with --resume, and so on; the last
start ends by itself. After every kill: the rest ends in time, no process stays, the launcher says one sentence with
the right exit code. At the chain's end: nothing lies about, every epoch is there once, and the weights are those of a
run that nobody disturbed.
"""

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.counting import Round
from tests.chaos.processes import end_all, left
from tests.chaos.runs import (
    CASES,
    ENDS_SECONDS,
    EPOCHS,
    GONE_SECONDS,
    Attempt,
    Case,
    Reference,
    digest,
    finished,
    names,
    num_epochs,
)

PHASES = ("start-up", "partition", "checkpoint", "epoch", "end")


@dataclass(frozen=True)
class Plan:
    """What is to be killed, and when."""

    victim: str  # launcher, starter (of workers), worker, metis or function
    number: int  # of the worker
    phase: str
    epoch: int  # after which, in phase "epoch"
    share: float  # of the time that the moment lasts, or may last


def draw(random: random.Random, case: Case, resumes: bool) -> Plan:
    """A moment, and somebody who is there then."""
    phases = [phase for phase in PHASES if phase != "partition" or (case.workers > 1 and not resumes)]
    phase = random.choice(phases)
    victims = {"partition": ["metis", "launcher"]}.get(
        phase, ["worker", "launcher"] if case.workers > 1 else ["launcher"]
    )
    if case.workers > 1 and phase == "start-up":
        victims = [*victims, "starter"]
    if case.preset == "dorylus" and phase == "epoch":
        victims = [*victims, "function"]
    return Plan(
        random.choice(victims), random.randrange(case.workers), phase, random.randrange(EPOCHS), random.random()
    )


def _strike(attempt: Attempt, plan: Plan, start_seconds: float) -> str | None:
    """Kills as planned; the phase in which it hit, None where the run had ended before."""
    run, case = attempt.run, attempt.case
    targets: dict[str, Callable[[], int | None]] = {
        "launcher": lambda: attempt.process.pid,
        "worker": lambda: attempt.worker(plan.number),
        "starter": attempt.starter,
        "metis": attempt.metis,
        "function": attempt.function,
    }
    longest = 0.0
    if plan.phase == "start-up":
        reached = attempt.wait_for(lambda: targets[plan.victim]() is not None)
        longest = start_seconds
    elif plan.phase == "partition":
        reached = attempt.wait_for(lambda: attempt.metis() is not None)
        longest = 0.0 if plan.victim == "metis" else 0.4
    elif plan.phase == "checkpoint":
        reached = attempt.wait_for(lambda: attempt.phase() == "checkpoint", look_seconds=0.001)
        longest = 0.002
    elif plan.phase == "epoch":
        first = max(plan.epoch, attempt.epochs_before)
        reached = attempt.wait_for(lambda: first <= num_epochs(run) and any("epoch" in s for s in attempt.steps())
                                   if case.workers > 1 else first < num_epochs(run))  # fmt: skip
        longest = 0.02
    else:
        reached = attempt.wait_for(attempt.at_end)
        longest = 0.3
    pid = targets[plan.victim]() if reached else None
    if pid is None:
        return None
    time.sleep(longest * plan.share)
    phase = attempt.phase()
    if attempt.process.poll() is not None:
        return None
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return phase


def run_chain(case_name: str, seed: int, reference: Reference) -> list[Round]:
    """A run that is killed one to three times and then left alone: what was done, and what did not hold."""
    case, random_ = CASES[case_name], random.Random(f"{case_name} {seed}")
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        for _ in range(random_.randint(1, 3)):
            resumes = (folder / "run" / "config.yaml").exists()
            plan = draw(random_, case, resumes)
            one = Round("kills", case_name, f"{seed}: {plan}")
            attempt = Attempt(case, folder, resumes)
            try:
                one.hit = _strike(attempt, plan, reference.start_seconds)
                one.victim = plan.victim
                _judge(attempt, plan, one)
            finally:
                end_all(attempt.token, attempt.process)
            rounds.append(one)
            if (folder / "run" / "summary.json").exists():
                break
        _finish(case, folder, reference.digest, rounds[-1])
    return rounds


def _judge(attempt: Attempt, plan: Plan, one: Round) -> None:
    """What must hold after a kill."""
    try:
        code = attempt.process.wait(ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        one.fail("hang", f"no end within {ENDS_SECONDS:g} s")
        return
    stayed = left(attempt.token, GONE_SECONDS)
    if stayed:
        one.fail("orphan", "; ".join(f"{process.pid} {process.command}" for process in stayed))
    said = attempt.error()
    if "Traceback" in said:
        one.fail("traceback", said)
    if one.hit is None or plan.victim == "function":  # the pool replaces a function, and the run goes on
        if code != 0:
            one.fail("exit code", f"{code} though nothing that the run needs was killed: {said}")
    elif plan.victim == "launcher":
        if code not in (-signal.SIGKILL, 0):
            one.fail("exit code", f"{code}: {said}")
    elif code == 0 and finished(attempt.run):
        one.late = True  # the worker had done its part
    else:
        _judge_sentence(attempt, plan, code, said, one)
    if code != -signal.SIGKILL:
        _judge_leftovers(attempt, one)  # a killed launcher's are swept at the next start


def _judge_sentence(attempt: Attempt, plan: Plan, code: int, said: str, one: Round) -> None:
    number = plan.number
    expected = {
        "worker": (1, rf"worker {number} was killed by SIGKILL during \S"),
        "starter": (1, "worker 0 was killed by SIGKILL during start"),
        "metis": (2, r"METIS was .* SIGKILL"),
    }
    want, words = expected[plan.victim]
    line = " ".join(said.split())
    if code != want:
        one.fail("exit code", f"{code}, not {want}: {said}")
    if not re.search(words, line) or len(re.findall(r"\berror\b:? ", line)) != 1:
        one.fail("sentence", said or "nothing was said")


def _judge_leftovers(attempt: Attempt, one: Round) -> None:
    """Whoever ends by himself tidies up; a checkpoint that was half-written stays until the next one."""
    found = [f"tmp/{name}" for name in names(attempt.temporary) if not name.startswith("torch")]  # torch keeps caches
    if attempt.process.returncode == 0:
        found += [str(path.relative_to(attempt.folder)) for path in attempt.run.glob("**/*") if _is_partial(path)]
    if attempt.process.returncode == 2 and attempt.run.exists() and not attempt.resumes:
        found.append("run")  # it never trained
    if found:
        one.fail("leftovers", " ".join(found))


def _is_partial(path: Path) -> bool:
    return path.name.endswith(".partial") or ".partial." in path.name


def _finish(case: Case, folder: Path, reference: str, last: Round) -> None:
    """Goes on to the end, and compares it with the run that nobody disturbed."""
    if not finished(folder / "run"):
        attempt = Attempt(case, folder, (folder / "run" / "config.yaml").exists())
        try:
            code = attempt.process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            last.fail("hang", f"the resumed run did not end within {ENDS_SECONDS:g} s")
            return
        finally:
            end_all(attempt.token, attempt.process)
        if code != 0:
            last.fail("resume", f"exit code {code}: {attempt.error()}")
            return
        _judge_leftovers(attempt, last)
    if digest(folder / "run") != reference:
        last.fail("weights", "other weights than those of the run that nobody disturbed")
    epochs = [json.loads(line)["epoch"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    if epochs != list(range(1, EPOCHS + 1)):
        last.fail("metrics", f"epochs {epochs}")
