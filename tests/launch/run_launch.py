"""`python -m tests.launch.run_launch WORKERS DEED FOLDER [DEADLINE [GRACE]]`: the launcher in a process of its own."""

import os
import sys

from weft.errors import UserError
from weft.launch import launch

if __name__ == "__main__":
    workers, deed, folder, *rest = sys.argv[1:]
    deadline_seconds = float(rest[0]) if rest else 60.0
    port = int(os.environ["TEST_PORT"]) if "TEST_PORT" in os.environ else None
    try:
        code = launch(
            "tests.launch.worker_script",
            [deed, folder, str(deadline_seconds)],
            int(workers),
            threads_per_worker=1 if deed != "train" else None,
            deadline_seconds=deadline_seconds,
            port=port,
            grace_seconds=float(rest[1]) if len(rest) > 1 else 30.0,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    print("launch returned", code, flush=True)
    sys.exit(code)
