"""The one exception that means "the user can mend this": printed as a sentence, never as a traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What is wrong, where, and what to do about it, in one sentence."""


class WorkerLost(RuntimeError):
    """A worker of the run stopped answering; the message names worker, step and operation."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}': {hint}")
