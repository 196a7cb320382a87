"""A worker process's side of the launcher: where it is, and how it failed.

The launcher gives each worker a folder (WEFT_STATUS) in which the worker keeps two small files: the step it is at,
and, when it fails, why. Under torchrun there is no such folder, and errors go to stderr.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from weft.errors import UserError, WorkerLost

STATUS_VARIABLE = "WEFT_STATUS"
PARENT_VARIABLE = "WEFT_PARENT"  # the launcher's process id
EXIT_FAILURE, EXIT_USER_ERROR = 1, 2

_step_file: int | None = None


def report_step(step: str) -> None:
    """Keeps the last step for the launcher; a few microseconds, no effect without one."""
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


def run_worker(main: Callable[[], object]) -> NoReturn:
    """Runs a worker's main function and ends the process: 0, or 2 for a user's mistake, or 1.

    The launcher prints the reason once, whichever worker it came from. The process ends without waiting for the
    network's threads, which after a failure may wait for a peer that is gone.
    """
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
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
        kind, message = "error", f"{type(error).__name__}: {error}".strip(": ")
    if kind == "error":
        traceback.print_exception(error)
    folder = os.environ.get(STATUS_VARIABLE)
    if folder is not None:
        with suppress(OSError):
            path = Path(folder) / f"{os.environ.get('RANK', '0')}.error"
            path.write_text(json.dumps({"kind": kind, "message": message}))
            return
    # Without the launcher the workers are on their own: worker 0 speaks, others where only they know.
    if kind != "error":
        print(f"error: {message}", file=sys.stderr)
