"""`python -m tests.launch.run_launch WORKERS DEED FOLDER [DEADLINE [GRACE]]`: the launcher in a process of its own."""

import sys

from weft.launch.ending import print_failure
from weft.launch.launcher import launch

if __name__ == "__main__":
    workers, deed, folder, *rest = sys.argv[1:]
    deadline_seconds = float(rest[0]) if rest else 60.0
    ending = launch(
        "tests.launch.worker_script",
        [deed, folder, str(deadline_seconds)],
        int(workers),
        threads_per_worker=1,
        deadline_seconds=deadline_seconds,
        grace_seconds=float(rest[1]) if len(rest) > 1 else 30.0,
    )
    sys.exit(print_failure(ending).code)
