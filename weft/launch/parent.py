"""A worker ends with the process that started it, and does not stay where it was stopped.

`weft train` kills its workers itself and needs only the first. torchrun's agent kills its workers when one of them
fails, but it may be killed itself, and it waits without end for a worker that is stopped: there each worker has a
guard, a small process that kills it when it stays stopped for longer than the run's deadline.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PARENT_VARIABLE = "WEFT_PARENT"  # the launcher's process id
STARTED_BY = os.getppid()  # at the first import of weft, before torch's, which takes seconds

_GUARD = Path(__file__).with_name("guard.py")
_PR_SET_PDEATHSIG = 1
_guard: subprocess.Popen[bytes] | None = None


def end_with_parent(parent: int | None = None) -> None:
    """Ends this process when its parent is gone. SIGKILL, because a worker that waits for the network is deaf.

    The parent is the launcher, or, without one, who started this process.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the line above.
    if os.getppid() != (parent or int(os.environ.get(PARENT_VARIABLE, STARTED_BY))):
        os._exit(1)


def _under_torchrun() -> bool:
    """Whether torchrun's agent started this worker, and no launcher of weft's did."""
    return "TORCHELASTIC_RUN_ID" in os.environ and PARENT_VARIABLE not in os.environ


def _is_left_by_agent() -> bool:
    """Whether torchrun's agent died before weft was imported, so that another process stands as this one's parent.

    The agent is a Python process of the same user, and starts a worker as the leader of a session of its own.
    """
    if os.getsid(0) != os.getpid():
        return False  # a script stands between the two
    try:
        return "python" not in Path(f"/proc/{STARTED_BY}/exe").readlink().name
    except OSError:
        return True


def guard(deadline_seconds: float) -> None:
    """Under torchrun a worker ends from now on with the agent, and when it is stopped for longer than the deadline."""
    global _guard
    if sys.platform != "linux" or not _under_torchrun() or _guard is not None:
        return
    end_with_parent()
    if _is_left_by_agent():
        os._exit(1)
    if os.environ.get("WORLD_SIZE") == "1":
        return  # nobody waits for it
    # A session of its own: who stops the worker's process group does not stop the guard. -I -S: it starts in 10 ms.
    command = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(deadline_seconds)]
    command.append(os.environ.get("RANK", "0"))
    _guard = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
