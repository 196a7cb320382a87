"""Commands of weft's under a fault: how they end, and what must hold whatever the fault was."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.counting import Round
from tests.chaos.processes import TOKEN, end_all, left, new_token
from tests.chaos.runs import ENDS_SECONDS, GONE_SECONDS
from tests.launch.launching import ROOT


@dataclass
class Command:
    """`weft ARGUMENTS`, running."""

    arguments: Sequence[str]
    folder: Path  # of its output and, unless `variables` say otherwise, its temporary files
    variables: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None  # called in the new process
    name: str = "weft"

    def __post_init__(self) -> None:
        self.token = new_token()
        self.temporary = self.folder / f"{self.name}-tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        variables = {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), TOKEN: self.token, **self.variables}
        with (self.folder / f"{self.name}-out").open("w") as out, (self.folder / f"{self.name}-err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weft", *self.arguments], cwd=ROOT, env=os.environ | variables, stdout=out,
                stderr=err, start_new_session=True, preexec_fn=self.before,
            )  # fmt: skip

    def end(self, one: Round) -> int:
        """The exit code. It comes in time, no process stays, and a failure is one sentence and not a trace."""
        try:
            code = self.process.wait(ENDS_SECONDS)
            stayed = left(self.token, GONE_SECONDS)
        except subprocess.TimeoutExpired:
            one.fail("hang", f"no end within {ENDS_SECONDS:g} s: {self.said()}")
            return -1
        finally:
            end_all(self.token, self.process)
        if stayed:
            one.fail("orphan", "; ".join(f"{process.pid} {process.command}" for process in stayed))
        said = self.said()
        if "Traceback" in said:
            one.fail("traceback", said)
        if code < 0:
            one.fail("crash", f"signal {-code}: {said}")
        elif code and not re.search(r"^error:? ", said, re.MULTILINE):
            one.fail("sentence", f"exit code {code}: {said or 'nothing was said'}")
        if code not in (0, 1, 2):
            one.fail("exit code", f"{code}: {said}")
        return code

    def said(self) -> str:
        return (self.folder / f"{self.name}-err").read_text(errors="replace")


def train(run: Path, workers: int, *rest: str, data: str = "synthetic:tiny") -> list[str]:
    arguments = ["train", "--data", data, "--run", str(run), "--workers", str(workers), "--epochs", "4", "--seed", "5"]
    return [*arguments, "--set", "threads=1", "--set", "deadline_seconds=60", *rest]


def partition(out: Path, *rest: str, data: str = "synthetic:tiny") -> list[str]:
    return ["partition", data, "--parts", "2", "--out", str(out), *rest]
