"""From `weft train` to its end on a graph so small that it is mostly start-up: workers forked, and each on its own.

    python -m benchmarks.start [--quick] [--json FILE]

"forked": as the command does it, torch is imported once and workers are forked from the process that did. "apart": the
same command with forking turned off, so that every worker is a process that imports torch for itself, as it is on
systems other than Linux. Seconds are of the wall clock; processor time is of all processes of a command.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Bench, parse

WORKERS = (2, 4, 8)
COMMAND = (
    "import sys; from weft.launch import processes; processes.FORKS = {forks}; from weft.cli.app import main; main()"
)


def train(workers: int, forks: bool, folder: Path, spent: list[float]) -> None:
    """One whole command; its processor time goes to `spent`."""
    arguments = ["train", "--data", "synthetic:tiny", "--workers", str(workers), "--epochs", "1", "--overwrite"]
    arguments += ["--run", str(folder / "run"), "--set", "threads=1", "--set", "partition.method=random"]
    before = _processor_seconds()
    subprocess.run([sys.executable, "-c", COMMAND.format(forks=forks), *arguments], check=True, capture_output=True)
    spent.append(_processor_seconds() - before)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    bench = Bench("start", parse(__doc__))
    with tempfile.TemporaryDirectory() as name:
        for workers in WORKERS[:2] if bench.options.quick else WORKERS:
            spent: dict[str, list[float]] = {"forked": [], "apart": []}
            sides = {
                side: partial(train, workers, side == "forked", Path(name), times) for side, times in spent.items()
            }
            seconds = bench.measure(sides, rounds=5)
            of_cores = {f"{side} cpu s": statistics.median(times) for side, times in spent.items()}
            bench.row(f"{workers} workers", seconds, **of_cores)
            bench.bar(f"{workers} workers, seconds apart / forked", seconds["apart"] / seconds["forked"], 1.0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
