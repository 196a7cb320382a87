"""The one exception that means "the user can mend this": printed as a sentence, never as a traceback."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """What is wrong, where, and what to do about it, in one sentence."""


class WorkerLost(RuntimeError):
    """A worker of the run stopped answering; the message names worker, step and operation."""


EXTRAS = {  # optional packages, and which of weft's extras brings them
    "pymetis": "partition",
    "graphdatascience": "data",
    "torch_geometric": "data",
    "ogb": "data",
    "zmq": "serverless",
    "boto3": "serverless",
    "botocore": "serverless",
    "aiohttp": "serverless",
    "awslambdaric": "serverless",
    "ray": "ray",
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
