"""`python -m weft.worker_main VERB RUN [ARGUMENT]`: what the launcher starts, once per worker."""

import json
import sys
from pathlib import Path

from weft.comm import run_worker
from weft.worker import evaluate, export, train, weigh_plans


def main() -> None:
    verb, run, *rest = sys.argv[1:]
    if verb == "train":
        sys.exit(train(Path(run), resume="resume" in rest, quiet="quiet" in rest))
    elif verb == "evaluate":
        values, worker = evaluate(Path(run))
        if worker == 0:
            Path(rest[0]).write_text(json.dumps(values))
    elif verb == "plan":
        megabits, latency = (float(text) if text else None for text in rest[1:3])
        weigh_plans(Path(run), Path(rest[0]), megabits, latency)
    elif verb == "export":
        export(Path(run), Path(rest[0]))
    else:
        sys.exit(f"unknown verb {verb}")


run_worker(main)
