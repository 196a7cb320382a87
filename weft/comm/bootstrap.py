"""`python -m weft.comm.bootstrap MODULE ARGS`: how the launcher starts `python -m MODULE ARGS` as a worker.

Before the module runs, the process asks the kernel to end it when the launcher dies, however that happens.
"""

import ctypes
import os
import runpy
import signal
import sys

from weft.comm.process import PARENT_VARIABLE

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ends this process when the launcher is gone. SIGKILL, because a worker that waits for the network is deaf."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The launcher may have died before the line above.
    if os.getppid() != int(os.environ.get(PARENT_VARIABLE, os.getppid())):
        os._exit(1)


if __name__ == "__main__":
    end_with_parent()
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
