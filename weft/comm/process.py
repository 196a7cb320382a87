"""What a worker process reports to the launcher: which step it is at, and why it failed.

The launcher gives each worker a folder (WEFT_STATUS) in which the worker keeps two small files: the step it is at,
and, when it fails, why. Under torchrun there is no such folder, and errors go to stderr.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from weft.disk.space import sentence_for
from weft.errors import UserError, WorkerLost, describe_error, print_error

STATUS_VARIABLE = "WEFT_STATUS"
EXIT_FAILURE, EXIT_USER_ERROR = 1, 2

PIPE_VARIABLE = "WEFT_PIPE"  # set where the launcher gives a worker something through its standard input
LINE_VARIABLE = "WEFT_LINE"  # the descriptor of a socket between worker 0 and the launcher
GO_ON, STOP = "go on\n", "stop\n"  # answers of the launcher

_step_file: int | None = None
_line: TextIO | None = None


def report_step(step: str) -> None:
    """Writes the current step to a file for the launcher, in microseconds; without a launcher it does nothing."""
    global _step_file
    folder = os.environ.get(STATUS_VARIABLE)
    if folder is None:
        return
    with suppress(OSError):
        if _step_file is None:
            path = Path(folder) / f"{os.environ.get('RANK', '0')}.step"
            _step_file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        # Padded to a fixed length, so that one write replaces what was there.
        os.pwrite(_step_file, step.encode()[:120].ljust(120), 0)


def handed_over(name: str) -> str:
    """The text of this name that the launcher was given for its workers."""
    return (Path(os.environ[STATUS_VARIABLE]) / name).read_text()


def handed_through_pipe() -> bytes | None:
    """What the launcher gives its workers through their standard input; None: nothing."""
    if os.environ.pop(PIPE_VARIABLE, None) is None:
        return None
    return sys.stdin.buffer.read()


def tell_launcher(record: Mapping[str, Any]) -> bool:
    """Gives the launcher the record of an epoch, on worker 0; whether training is to go on."""
    global _line
    if _line is None:
        _line = socket.socket(fileno=int(os.environ[LINE_VARIABLE])).makefile("rw", encoding="utf-8")
    _line.write(json.dumps(record, allow_nan=False) + "\n")
    _line.flush()
    answer = _line.readline()
    if not answer:
        raise WorkerLost("the launcher ended while it was told of an epoch")
    return answer == GO_ON


def run_worker(main: Callable[[], object]) -> NoReturn:
    """Runs a worker's main function and ends the process: 0, or 2 for a user's mistake, or 1.

    The launcher prints the reason once, whichever worker it came from.
    """
    try:
        main()
    except BaseException as failure:
        end_process(failure)
    end_process(None)


def end_process(failure: BaseException | None) -> NoReturn:
    """Ends this worker's process and says why, if it failed: 0, or 2 for a user's mistake, or 1.

    It does not wait for the network's threads, which after a failure may wait for a peer that is gone. The connections
    close with the process, by which its peers notice at once.
    """
    code = 0
    if isinstance(failure, SystemExit):
        code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
        if isinstance(failure.code, str):
            print(failure.code, file=sys.stderr)
    elif failure is not None:
        error = sentence_for(failure) or failure
        code = EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE
        _report_failure(error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _report_failure(error: BaseException) -> None:
    if isinstance(error, UserError):
        kind, message = "user", str(error)
    elif isinstance(error, WorkerLost):
        kind, message = "lost", str(error)
    else:
        kind, message = "error", describe_error(error)
    trace = ""
    if kind == "error":
        trace = "".join(traceback.format_exception(error))
        print(trace, end="", file=sys.stderr)
    folder = os.environ.get(STATUS_VARIABLE)
    if folder is not None:
        with suppress(OSError):
            path = Path(folder) / f"{os.environ.get('RANK', '0')}.error"
            path.write_text(json.dumps({"kind": kind, "message": message, "trace": trace}))
            return
    print_error(message)  # without the launcher nobody else prints it
