"""`python guard.py PID SECONDS NAME`: kills its parent, a worker, when it stays stopped (SIGSTOP) for so long.

A stopped worker cannot notice anything, and torchrun's agent takes it for a running one. A script of its own, so that
it imports no torch.
"""

import os
import select
import signal
import sys
from pathlib import Path


def main() -> None:
    worker, limit_seconds, name = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    # Signals that ask the worker to leave are not for the guard, which ends with the worker.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process = os.pidfd_open(worker)  # stands for this process even when its number has been given to another
    if os.getppid() != worker:
        return
    look_seconds = min(1.0, limit_seconds / 8)
    ended = select.poll()
    ended.register(process, select.POLLIN)
    stopped_seconds = 0.0  # summed up over the looks: time in which the guard was stopped too does not count
    while not ended.poll(1000 * look_seconds):
        stopped_seconds = stopped_seconds + look_seconds if _is_stopped(worker) else 0.0
        if stopped_seconds > limit_seconds:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            print(f"error: worker {name} was stopped for longer than the deadline of {limit_seconds:g} s and was "
                  "ended", file=sys.stderr)  # fmt: skip
            return


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


if __name__ == "__main__":
    main()
