"""Runs of `weft train` on a graph so small that they are mostly start-up, and where such a run is, seen from outside.

Moments are found in the files and processes that a run makes, so that nothing in the product knows of the tests.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.processes import TOKEN, children, command_of, end_all, name_of, new_token
from tests.launch.launching import ROOT

EPOCHS = 10
ENDS_SECONDS = 300.0  # a run that has not ended by then hangs: the deadline of its waits is 60 s
GONE_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """A preset, and what makes its runs do the same again."""

    preset: str
    workers: int
    settings: tuple[str, ...] = ()
    model: str = "gcn"


_SAMPLED = ("sample.batch=40", "sample.fanout=[4,4]")
CASES = {
    "full": Case("full", 3),
    "single": Case("single", 1),
    "sar": Case("sar", 2),
    # fidelity 1: else the measured speed of channels, which a busy machine changes, has a say in the bits
    "adaqp": Case("adaqp", 2, ("exchange.assign_cycle=3", "exchange.fidelity=1.0")),
    "minibatch": Case("minibatch", 2, _SAMPLED, "sage"),
    "batchgnn": Case("batchgnn", 2, _SAMPLED, "sage"),
    "gsplit": Case("gsplit", 2, _SAMPLED, "sage"),
    "dorylus": Case("dorylus", 2, ("executor.staleness=pipe", "executor.workers=1", "executor.intervals=2")),
}


class Reference(NamedTuple):
    """What a run that nobody disturbs comes to."""

    digest: str
    start_seconds: float  # until the first epoch is done


@dataclass
class Attempt:
    """One start of a run, while it lasts."""

    case: Case
    folder: Path  # of the chain: the run, temporary files and output
    resumes: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default_factory=new_token)
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.run, self.temporary = self.folder / "run", self.folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.epochs_before = num_epochs(self.run)
        command = [sys.executable, "-m", "weft", "train", "--run", str(self.run)]
        command += ["--resume"] if self.resumes else self._arguments()
        variables = {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), TOKEN: self.token, **self.variables}
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | variables, stdout=out, stderr=err, start_new_session=True
            )

    def _arguments(self) -> list[str]:
        case = self.case
        arguments = ["--data", "synthetic:tiny", "--model", case.model, "--strategy", case.preset, "--seed", "5"]
        arguments += ["--workers", str(case.workers), "--epochs", str(EPOCHS)]
        settings = ("threads=1", "deadline_seconds=60", "train.checkpoint_every=2", "train.patience=null")
        for setting in (*settings, *case.settings):
            arguments += ["--set", setting]
        return arguments

    def worker(self, number: int) -> int | None:
        """The process id of a worker, once it is there."""
        if self.case.workers == 1:
            return self.process.pid
        return next((pid for pid in children(self.process.pid) if name_of(pid) == f"weft worker {number}"), None)

    def starter(self) -> int | None:
        """The process that becomes the workers, before it has done so."""
        return next((pid for pid in children(self.process.pid) if name_of(pid) == "weft starter"), None)

    def metis(self) -> int | None:
        return next((pid for pid in children(self.process.pid) if "metis_process" in command_of(pid)), None)

    def function(self) -> int | None:
        """A process of the pool that some worker started."""
        for worker in range(self.case.workers):
            pid = self.worker(worker)
            for child in children(pid) if pid is not None else ():
                if "weft_function" in command_of(child):
                    return child
        return None

    def at_end(self) -> bool:
        """Whether all epochs are done."""
        if self.case.workers > 1:
            return any(step == "the end" for step in self.steps())
        return num_epochs(self.run) >= EPOCHS

    def phase(self) -> str:
        """Where the run is, as far as its files tell."""
        if any(name.endswith(".partial") for name in names(self.run / "checkpoints")):
            return "checkpoint"
        if self.at_end():
            return "end"
        if num_epochs(self.run) > self.epochs_before or any("epoch" in step for step in self.steps()):
            return "epoch"
        if self.metis() is not None or any("metis" in name for name in names(self.temporary)):
            return "partition"
        return "start-up"

    def steps(self) -> Iterator[str]:
        """What the workers last noted for the launcher."""
        for file in self.temporary.glob("weft-run-*/*.step"):
            with suppress(OSError):
                yield file.read_text().strip()

    def wait_for(
        self, condition: Callable[[], bool], seconds: float = ENDS_SECONDS, look_seconds: float = 0.01
    ) -> bool:
        """Whether it came before the run's end, and in time."""
        until = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(look_seconds)
        return True

    def digest(self) -> str:
        return digest(self.run)

    def error(self) -> str:
        return (self.folder / "err").read_text(errors="replace")


@functools.cache
def undisturbed(case_name: str) -> Reference:
    """A run that nobody disturbs."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        attempt = Attempt(CASES[case_name], Path(name), resumes=False)
        try:
            attempt.wait_for(lambda: num_epochs(attempt.run) > 0)
            start_seconds = time.monotonic() - attempt.begun
            code = attempt.process.wait(ENDS_SECONDS)
        finally:
            end_all(attempt.token, attempt.process)
        assert code == 0, attempt.error()
        return Reference(digest(attempt.run), start_seconds)


def digest(run: Path) -> str:
    summary = json.loads((run / "summary.json").read_text())
    return f"{summary['weights_sha256']} {summary['best_weights_sha256']}"


def finished(run: Path) -> bool:
    return (run / "summary.json").exists()


def num_epochs(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
