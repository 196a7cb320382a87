"""`python -m weft_function.parent PID MODULE ARGS`: runs `python -m MODULE ARGS` until process PID ends."""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent, process `parent`, ends in any way."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call above
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    module, sys.argv[1:] = sys.argv[2], sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
