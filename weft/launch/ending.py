"""How the workers of a run ended. It needs no torch, so that the command line knows it before anything is imported."""

from dataclasses import dataclass

from weft.errors import print_error


@dataclass(frozen=True)
class Ending:
    """How the workers of a run ended."""

    code: int  # of the command
    kind: str = ""  # killed, lost, user or error; empty where none of them failed
    text: str = ""  # what happened first, to whom
    trace: str = ""  # of the exception in that worker, where it was a mistake of the program

    @property
    def sentence(self) -> str:
        return self.text if self.kind == "user" else f"{self.text}; all other workers were ended"


class RunFailed(RuntimeError):
    """Raised when workers were lost or failed: the message says which one, when, and of what.

    >>> try:
    ...     run = weft.train("synthetic:tiny", run="my-run", quiet=True, train={"epochs": 2})
    ... except weft.RunFailed as failed:
    ...     print(failed, failed.code)
    """

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.sentence if ending.kind else f"the run was interrupted (exit code {ending.code})")
        self.ending, self.code, self.kind = ending, ending.code, ending.kind
        if ending.trace:
            self.add_note(ending.trace)


def print_failure(ending: Ending) -> Ending:
    """Prints what went wrong, if anything did."""
    if ending.kind:
        print_error(ending.sentence)
    return ending
