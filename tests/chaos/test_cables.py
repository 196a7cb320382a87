"""Two hosts whose cable is out for moments, or for good, while they train.

After moments the run ends as if nothing had happened. When the cable stays out, both hosts end within the deadline and
name each other, and when it is back the run goes on to the same weights.
"""

import functools
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import weft
from tests.chaos.counting import SEED, Round, check, rounds
from tests.chaos.runs import ENDS_SECONDS, digest, num_epochs
from tests.launch.launching import wait_until
from tests.multihost.hosts import Hosts, finish, output, two_hosts, why_not

SHARE = 0.04
FEW = 1
KINDS = ("out for good", "out for moments")  # both begin with moments
EPOCHS = 600
DEADLINE_SECONDS = 15  # where the cable stays out: more than the starts of two workers can lie apart
LONG_SECONDS = 120
REASON = why_not()
pytestmark = [pytest.mark.multihost, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def _start(hosts: Hosts, folder: Path, deadline_seconds: int, *rest: str) -> list[subprocess.Popen[str]]:
    train = ["-m", "--", "weft", "train", "--data", str(folder / "parts"), "--run", str(folder / "run")]
    train += ["--model", "gcn", "--epochs", str(EPOCHS), "--seed", "3", *rest]
    for setting in ("threads=1", f"deadline_seconds={deadline_seconds}", "train.checkpoint_every=50"):
        train += ["--set", setting]
    return [hosts.torchrun(host, 1, train) for host in (0, 1)]


def _reached(folder: Path, epochs: int, runs: list[subprocess.Popen[str]]) -> bool:
    """Whether the run has come so far and goes on."""
    run = folder / "run"
    wait_until(lambda: num_epochs(run) >= epochs or any(one.poll() is not None for one in runs), ENDS_SECONDS)
    return all(one.poll() is None for one in runs)


def _end(folder: Path, runs: list[subprocess.Popen[str]], one: Round, wanted: str | None) -> None:
    """The run ends, and by the weights that are wanted."""
    for run in runs:
        try:
            code, said = finish(run, ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            one.fail("hang", output(run))
            return
        if code:
            one.fail("exit code", f"{code}: {said}")
            return
    if wanted is not None and digest(folder / "run") != wanted:
        one.fail("weights", "other weights than those of a run whose cable was never out")


def _out_for_moments(hosts: Hosts, folder: Path, random_: random.Random, runs: list[subprocess.Popen[str]]) -> bool:
    """Whether the run goes on after some cuts."""
    for _ in range(random_.randint(1, 3)):
        if not _reached(folder, num_epochs(folder / "run") + random_.randint(3, 50), runs):
            return False
        hosts.cut()
        time.sleep(random_.uniform(0.2, 3.0))
        hosts.mend()
    return _reached(folder, num_epochs(folder / "run") + 3, runs)


def _out_for_good(hosts: Hosts, runs: list[subprocess.Popen[str]], one: Round) -> None:
    """Both hosts end, and name each other."""
    hosts.cut()
    for worker, run in enumerate(runs):
        try:
            code, said = finish(run, DEADLINE_SECONDS + LONG_SECONDS)
        except subprocess.TimeoutExpired:
            one.fail("hang", output(run))
            return
        if not code or not re.search(rf"worker {worker} lost worker {1 - worker} during \S", " ".join(said.split())):
            one.fail("sentence", f"exit code {code}: {said}")
    hosts.mend()


def _parts(folder: Path) -> None:
    weft.partition("synthetic:tiny", 2, folder / "parts", method="random")


@functools.cache
def _undisturbed() -> str:
    one = Round("cables", "never out", "")
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, two_hosts() as hosts:
        _parts(Path(name))
        _end(Path(name), _start(hosts, Path(name), LONG_SECONDS), one, None)
        assert not one.failures, one.failures
        return digest(Path(name) / "run")


def _round(number: int) -> Round:
    random_, kind = random.Random(f"cables {SEED} {number}"), KINDS[number % len(KINDS)]
    one = Round("cables", kind, str(number))
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, two_hosts() as hosts:
        folder = Path(name)
        _parts(folder)
        runs = _start(hosts, folder, DEADLINE_SECONDS)
        goes_on = _out_for_moments(hosts, folder, random_, runs)
        if kind == "out for moments":
            one.hit = "epoch" if num_epochs(folder / "run") else None
        elif goes_on:
            one.hit = "epoch"
            _out_for_good(hosts, runs, one)
            runs = _start(hosts, folder, LONG_SECONDS, "--resume")
        _end(folder, runs, one, _undisturbed())
    return one


@pytest.mark.timeout(max(1200, 120 * rounds(FEW, SHARE)))
def test_a_cable_that_is_out_changes_no_weights() -> None:
    _undisturbed()
    played = [_round(number) for number in range(rounds(FEW, SHARE))]
    check(played)
    assert all(one.hit for one in played[:FEW])
