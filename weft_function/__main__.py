"""Starts a worker process: WEFT_KEY=HEX python -m weft_function tcp://HOST:PORT."""

import argparse
import os
import re
import sys
from contextlib import suppress

from weft_function.parent import end_with
from weft_function.session import KEY_BYTES, new_lease, shared_lease_key
from weft_function.user_function import UserFunction
from weft_function.worker import WAIT_SECONDS, LeaseTerms, work


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m weft_function", description="Runs the tasks of a graph server.")
    parser.add_argument("address", help="tcp://HOST:PORT of the graph server")
    parser.add_argument("--idle", type=float, help="leave after so many seconds without a task")
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, help="seconds to retry connecting to the server")
    parser.add_argument("--parent", type=int, help="leave when this process, which started this one, has ended")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds to wait before each response (experiments)")
    parser.add_argument("--trust", action="append", default=[], help="package.module whose functions may be called")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with(options.parent)
    # In the environment, which only this user can read: command lines are visible to all users.
    text, lease = os.environ.pop("WEFT_KEY", ""), os.environ.pop("WEFT_LEASE", "")
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        parser.error(f"the variable WEFT_KEY must hold the run's key, {2 * KEY_BYTES} hexadecimal digits")
    key = bytes.fromhex(text)
    if not lease:
        lease = new_lease()
        key = shared_lease_key(key, lease)
    UserFunction.trusted = tuple(options.trust)
    terms = LeaseTerms(idle_seconds=options.idle, parent=options.parent, wait_seconds=options.wait)
    with suppress(KeyboardInterrupt):
        report = work(options.address, key, lease, f"worker-{os.getpid()}", terms, options.delay)
        if not report.reached:
            sys.exit(f"error: {report.reason}")


if __name__ == "__main__":
    main()
