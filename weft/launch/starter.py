"""`python -m weft.launch.starter`: imports what workers need, once, and becomes the workers of this host.

Importing torch takes a second of a core. So one process does it, forks each worker, and ends; its workers become
children of the launcher. That is safe because nothing has run in it but imports: no kernel, hence no thread of OpenMP.
Where there is one worker to start, the process becomes that worker itself.

What is to be started comes through standard input, as JSON (`weft.launch.processes.Start`).
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import warnings
from typing import Any, NoReturn

from weft.launch.parent import end_with_parent

_PR_SET_NAME = 15


def main() -> NoReturn:
    end_with_parent()
    gc.disable()  # all that is imported stays: to look for garbage in it takes a sixth of the time
    job = json.load(sys.stdin)
    # Here, and not above: whoever starts this process dies while it imports torch, and is to be heard.
    from weft.comm.process import end_process

    try:
        module = importlib.import_module(job["module"])
    except BaseException as error:
        end_process(error)
    sys.argv = [job["module"], *job["arguments"]]
    gc.freeze()  # nor is it looked at later, so that workers share its pages
    first, *others = job["workers"]
    if not others:
        _become(first, job["workers"], module)
    for worker in job["workers"]:
        process_id = _fork(worker, job, module)
        os.write(job["report"], f"{process_id}\n".encode())
    os._exit(0)


def _fork(worker: dict[str, Any], job: dict[str, Any], module: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: OpenBLAS' and jemalloc's survive a fork
        process_id = os.fork()
    if process_id:
        return process_id
    from weft.comm.process import end_process

    try:
        os.close(job["report"])
        os.setsid()  # as for the starter: Ctrl-C reaches the launcher alone
        if not os.read(job["go"], 1):
            os._exit(1)  # the launcher has given up, or is gone
        end_with_parent()  # which is the launcher from now on
        _become(worker, job["workers"], module)
    except BaseException as error:
        end_process(error)


def _become(worker: dict[str, Any], workers: list[dict[str, Any]], module: Any) -> NoReturn:
    """Goes on as one of the workers."""
    from weft.comm.process import run_worker

    gc.enable()
    os.environ.update(worker["variables"])
    _set_name(f"weft worker {worker['variables']['RANK']}")
    stdin = os.open(os.devnull, os.O_RDONLY) if worker["stdin"] is None else worker["stdin"]
    os.dup2(stdin, 0)
    sys.stdin = os.fdopen(0, closefd=False)  # what the former one has read ahead is not this worker's
    if worker["log"] is not None:
        output = os.open(worker["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    for one in workers:
        for name in ("stdin", "line"):
            if one[name] is not None and (one is not worker or name == "stdin"):
                os.close(one[name])
    run_worker(module.main)


def _set_name(name: str) -> None:
    """What `top` and `ps` call this process, in at most 15 bytes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


if __name__ == "__main__":
    main()
