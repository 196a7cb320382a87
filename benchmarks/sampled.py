"""Accuracy of SAGE trained on sampled minibatches beside SAGE trained over the full graph; both evaluated exactly.

    WEFT_DATA=FOLDER python -m benchmarks.sampled [--quick] [--only physics] [--json FILE]

Mean of three seeds, the same model and evaluation on both sides; weights are those that were best on validation.
Minibatches of 1024 training vertices, fan-out 15, 10, aggregates of the input kept where counts say so. Then, on 4
workers and with five seeds, minibatches that each worker has of its own beside those that all share: their difference
may be two standard errors of its mean. Data sets whose files are not in FOLDER are left out, with a note. `--quick`
runs one seed of the smallest.
"""

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, parse
from weft.config import make_config, merge
from weft.errors import UserError
from weft.graph import open_graph
from weft.run import start

SEEDS, BAR = 3, 0.5  # points
MODEL = {"name": "sage", "layers": 2, "norm": "layer", "dropout": 0.5}
OPTIM = {"lr": 0.005, "weight_decay": 5e-5}
SAMPLED = {"strategy": "batchgnn", "sample": {"batch": 1024, "fanout": [15, 10]}}
WORKERS, SHARED_SEEDS, SHARED = 4, 5, ("amazon-computers", "synthetic:arxiv")
CASES: dict[str, dict[str, Any]] = {
    "amazon-computers": {"hidden": 256, "full": (200, 4), "sampled": (60, 2)},  # epochs, and between evaluations
    "coauthor-physics": {"hidden": 64, "full": (110, 10), "sampled": (10, 1)},
    "synthetic:arxiv": {"hidden": 128, "full": (150, 10), "sampled": (6, 1)},
}


def run_once(data: str, case: dict[str, Any], plan: str, seed: int, folder: Path) -> float:
    """Test accuracy, in per cent; `plan` is "full", "sampled", or the strategy of several workers."""
    epochs, every = case["full" if plan == "full" else "sampled"]
    settings = {
        "data": data, "seed": seed, "run": str(folder), "model": {**MODEL, "hidden": case["hidden"]}, "optim": OPTIM,
        "train": {"epochs": epochs, "eval_every": every, "checkpoint_every": 0},
    }  # fmt: skip
    if plan != "full":
        settings = merge(settings, SAMPLED)
    if plan in ("minibatch", "gsplit"):
        settings = merge(settings, {"strategy": plan, "workers": WORKERS, "threads": 1})
    config = make_config(settings)
    return 100 * float(start(config, overwrite=True, quiet=True).summary["test_accuracy"])


def measure(bench: Bench, data: str, case: dict[str, Any], seeds: int) -> None:
    values: dict[str, list[float]] = {"full": [], "sampled": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for plan, found in values.items():
                found.append(run_once(data, case, plan, seed, Path(folder) / "run"))
    means = {plan: statistics.mean(found) for plan, found in values.items()}
    bench.rows.append({"case": data, **values})
    cells = [f"{plan} {mean:.2f} % {[round(value, 2) for value in values[plan]]}" for plan, mean in means.items()]
    print(f"{data:<20} " + "   ".join(cells), flush=True)
    bench.bar(f"{data}: points that sampling costs", means["full"] - means["sampled"], BAR, unit="", at_least=False)


def share(bench: Bench, data: str, case: dict[str, Any], seeds: int) -> None:
    """Minibatches of each worker's own beside those that all workers share."""
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            own, shared = (run_once(data, case, plan, seed, Path(folder) / "run") for plan in ("minibatch", "gsplit"))
            differences.append(shared - own)
            print(f"{data:<20} seed {seed}: own {own:.2f} %, shared {shared:.2f} %", flush=True)
    bench.rows.append({"case": f"{data}, shared", "differences": differences})
    error = statistics.stdev(differences) / len(differences) ** 0.5 if seeds > 1 else 0.5
    name = f"{data}: points between own and shared minibatches (two standard errors are {2 * error:.2f})"
    bench.bar(name, abs(statistics.mean(differences)), max(2 * error, 0.05), unit="", at_least=False)


def main() -> int:
    bench = Bench("sampled", parse(__doc__))
    quick = bench.options.quick
    for data, case in list(CASES.items())[: 1 if quick else None]:
        if not bench.wanted(data):
            continue
        try:
            open_graph(data)
        except UserError as error:
            bench.note(f"{data} is left out: {error} (WEFT_DATA is {os.environ.get('WEFT_DATA', 'not set')})")
            continue
        measure(bench, data, case, 1 if quick else SEEDS)
        if data in SHARED:
            share(bench, data, case, 1 if quick else SHARED_SEEDS)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
