"""The programs of schedulers, which weft calls: what is missing or refused is one sentence."""

import subprocess
from collections.abc import Sequence

from weft.errors import UserError

SECONDS = 120  # for an answer


def call(command: Sequence[str], text: str, without: str, advice: str) -> str:
    """Runs a program with `text` as its input; returns what it says.

    without: what cannot be done where the program is missing. advice: what to do then.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        raise UserError(
            f"{without}: there is no {command[0]}; {advice}, or see what it would get by --dry-run"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]} gave no answer within {SECONDS} s: see whether the cluster is up") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UserError(f"{' '.join(command[:2])} failed: {said}")
    return done.stdout.strip()
