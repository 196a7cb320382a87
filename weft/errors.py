"""The one exception that means "the user can mend this", and the one form in which failures are printed."""

import difflib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Raised for what the user can mend: what is wrong, where, and what to do about it, in one sentence.

    >>> try:
    ...     weft.load("synthetic:tinny")
    ... except weft.UserError as mistake:
    ...     print(mistake)
    unknown synthetic graph 'tinny': did you mean 'tiny'?
    """


class Terminated(SystemExit):
    """SIGTERM or SIGHUP came: whatever is half-made is removed on the way out, as after Ctrl-C."""


class WorkerLost(RuntimeError):
    """Raised when a worker of the run has stopped answering: the message names worker, step and operation.

    >>> with weft.init_workers() as comm:
    ...     try:
    ...         total = comm.all_reduce(torch.ones(1))
    ...     except weft.WorkerLost as lost:  # the other workers have gone on to their ends, and so must this one
    ...         print(lost)
    ...         raise
    """


class StopTraining(Exception):
    """Raised for a run to end after the epoch at hand: by a function that was given as `on_epoch`.

    >>> def until_two(record):
    ...     if record["epoch"] == 2:
    ...         raise weft.StopTraining
    >>> run = weft.train("synthetic:tiny", run="my-run", quiet=True, on_epoch=until_two, train={"epochs": 9})
    >>> run.summary["epochs"]
    2
    """


def print_error(message: object) -> None:
    """Prints a failure in the form that all of them have: one line on stderr, `error: SENTENCE`."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    name = "\x1b[1;31merror:\x1b[0m" if coloured else "error:"
    print(name, " ".join(str(message).split()), file=sys.stderr, flush=True)


def describe_error(error: BaseException) -> str:
    """An exception of a program, by its kind and its message."""
    return f"{type(error).__name__}: {error}".strip(": ")


EXTRAS = {  # optional packages, and which of weft's extras brings them
    "pymetis": "partition",
    "torch_geometric": "data",
    "boto3": "serverless",
    "botocore": "serverless",
    "aiohttp": "serverless",
    "awslambdaric": "serverless",
    "ray": "ray",
    "mlflow": "trackers",
    "wandb": "trackers",
}


def not_installed(module: str, what: str) -> UserError:
    """An error for an optional package that something needs."""
    return UserError(
        f"{what} needs {module}, which is not installed: pip install '.[{EXTRAS[module]}]' in weft's folder"
    )


@contextmanager
def optional(what: str) -> Iterator[None]:
    """Imports of optional packages: one that is missing is named, with how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise not_installed(package, what) from None


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}': {hint}")
