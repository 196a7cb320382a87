"""What the sequential schedule costs in time: beside materialised, and beside what IntelLabs/SAR was measured at.

    python -m benchmarks.sequential [--quick] [--only sage] [--json FILE]

On `synthetic:arxiv` (`--quick`: a tenth of it), 3 layers, workers of one thread on this machine over loopback; launches
interleaved, medians over their epochs. "sar" is the preset, which also computes layers again to hold less.

SAR is no package of a registry. Its figures, SAGE 2.2 s and GAT (4 heads of 32) 4.4 s an epoch on a graph of this
shape with 2 workers of one thread, were measured on 2 Zen 4 cores; ours are taken here, so the ratio is between two
machines and stands on that.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, parse
from weft.config import make_config
from weft.prepare import partition
from weft.run import start

SAGE = {"name": "sage", "layers": 3, "hidden": 256}
GAT = {"name": "gat", "layers": 3, "hidden": 64, "heads": 4, "activation": "elu"}
UNFUSED = {**GAT, "name": "benchmarks.unfused:gat"}
SAR_GAT = {**GAT, "hidden": 32}
MATERIALISED = {"exchange": {"schedule": "materialised"}}
SEQUENTIAL = {"exchange": {"schedule": "sequential"}}
PRESET = {"strategy": "sar"}
SAR_SECONDS = {"sage": 2.2, "gat": 4.4}
EPOCHS = 4


def epoch_seconds(parts: Path, workers: int, model: dict[str, Any], extra: dict[str, Any]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "data": str(parts),
            "workers": workers,
            "threads": 1,
            "run": str(Path(folder) / "run"),
            "model": model,
            "train": {"epochs": EPOCHS, "eval_every": EPOCHS, "checkpoint_every": 0, "trace_epochs": 0},
            "memory": {"restrict": "never"},
            **extra,
        }
        run = start(make_config(settings), quiet=True)
        return [record["seconds"] for record in run.metrics[1:]]


def measure(
    bench: Bench, case: str, parts: Path, workers: int, sides: dict[str, tuple[Any, Any]], launches: int = 4
) -> dict[str, float]:
    """Median epoch of each side, launches interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(1 if bench.options.quick else launches):
        for name, (model, extra) in sides.items():
            samples[name] += epoch_seconds(parts, workers, model, extra)
    seconds = {name: statistics.median(times) for name, times in samples.items()}
    bench.row(f"{case}, {workers} workers", seconds)
    return seconds


def main() -> int:
    bench = Bench("sequential", parse(__doc__))
    spec = "synthetic:arxiv?nodes=16934" if bench.options.quick else "synthetic:arxiv"
    with tempfile.TemporaryDirectory() as folder:
        parts = {count: Path(folder) / f"parts-{count}" for count in (2, 4)}
        for count, path in parts.items():
            partition(spec, count, path)
        if bench.wanted("sage"):
            sides = {"materialised": (SAGE, MATERIALISED), "sequential": (SAGE, SEQUENTIAL), "sar": (SAGE, PRESET)}
            found = measure(bench, "sage", parts[4], 4, sides)
            ratio = found["sequential"] / found["materialised"]
            bench.bar("sage, 4 workers: sequential's time of materialised's", ratio, 1.25, at_least=False)
            two = measure(bench, "sage", parts[2], 2, {"sequential": (SAGE, SEQUENTIAL), "sar": (SAGE, PRESET)})
            if not bench.options.quick:
                bench.bar(
                    "sage, 2 workers: SAR's figure against sequential", SAR_SECONDS["sage"] / two["sequential"], 1.5
                )
        if bench.wanted("gat"):
            unfused = {
                "materialised, unfused": (UNFUSED, MATERIALISED),
                "sequential": (GAT, SEQUENTIAL),
                "sar": (GAT, PRESET),
            }
            found = measure(bench, "gat", parts[4], 4, unfused, launches=1)  # unfused takes its time
            bench.bar("gat, 4 workers: unfused materialised against sequential",
                      found["materialised, unfused"] / found["sequential"], 1.0)  # fmt: skip
            two = measure(
                bench, "gat 4 x 32", parts[2], 2, {"sequential": (SAR_GAT, SEQUENTIAL), "sar": (SAR_GAT, PRESET)}
            )
            if not bench.options.quick:
                bench.bar(
                    "gat, 2 workers: SAR's figure against sequential", SAR_SECONDS["gat"] / two["sequential"], 3.0
                )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
