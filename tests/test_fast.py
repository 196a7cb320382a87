"""What `make test-fast` runs: `pytest --fast`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("launch/test_launch.py", "comm/test_communicator.py", "serverless/test_wire.py")  # of each kind some tests


def test_tests_that_start_processes_are_skipped_when_they_do_and_the_others_run() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "1", "--fast", "-rs", "--durations=0", "--durations-min=20"]
    done = subprocess.run(
        [*command, *(f"tests/{file}" for file in FILES)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    *_, skips, last = done.stdout.strip().splitlines()
    assert " passed" in last and " skipped" in last
    assert "SKIPPED" in skips and "it starts processes" in done.stdout
    assert "s call" not in done.stdout, "none took long: nobody waited for a process that was refused"
