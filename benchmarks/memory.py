"""Peak memory of a worker as the graph is cut into more parts: sequential beside materialised.

    python -m benchmarks.memory [--quick] [--only gat] [--json FILE] [--plot FILE.png]

A dense graph without communities, cut at random, so that every worker's edges read nearly every vertex: the case in
which a halo does not shrink with the parts. 3 layers of 256 (GAT: 4 heads of 64), one thread per worker, all workers on
this machine. Memory is what a worker's process held at its peak above an empty one: the peak of the same run on a graph
of 300 vertices, which has loaded the same libraries and opened the same connections. The slope is that of a line
through log(memory) against log(parts): -1 is memory per worker that halves when workers double. `--quick`: a smaller
graph, and at most 4 parts, where the fixed costs of a process still show.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import Bench, parse
from weft.prepare import partition

MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 3, "hidden": 256},
    "gat": {"name": "gat", "layers": 3, "hidden": 64, "heads": 4, "activation": "elu"},
}
STRATEGIES = {"materialised": "full", "sequential": "sar"}
MIB = 1 << 20
JUDGED_PARTS = 8  # where GAT's memory is compared
EPOCHS = 3


def run_once(parts: Path, count: int, model: dict[str, Any], strategy: str, folder: Path) -> dict[str, Any]:
    settings = {
        "data": str(parts),
        "workers": count,
        "threads": 1,
        "strategy": strategy,
        "run": str(folder / "run"),
        "model": model,
        "train": {"epochs": EPOCHS, "eval_every": EPOCHS, "checkpoint_every": 0, "trace_epochs": 0},
        "memory": {"restrict": "never"},  # so that both sides compute the same rows
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    # A process of its own: with one worker the run takes place in the process that starts it, whose peak is its past.
    command = [sys.executable, "-m", "weft", "train", str(config), "--overwrite"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    wire = summary["wire_bytes"]
    return {
        "peak_bytes": max(summary["peak_rss_bytes"]),
        "seconds": summary["epoch_seconds"]["median"],
        "hidden_bytes": wire["hidden_forward"] + wire["hidden_backward"],
    }


def slope(points: list[tuple[int, float]]) -> float:
    """Of the least-squares line through log(value) against log(parts)."""
    xs, ys = [math.log(parts) for parts, _ in points], [math.log(value) for _, value in points]
    x, y = statistics.mean(xs), statistics.mean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measure(bench: Bench, name: str, spec: str, part_counts: tuple[int, ...], folder: Path) -> None:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for count in part_counts:
        parts = folder / f"parts-{count}"
        if not parts.exists():
            partition(spec, count, parts, method="random")
            partition("synthetic:tiny", count, folder / f"tiny-{count}", method="random")
        empty = run_once(folder / f"tiny-{count}", count, MODELS[name], "sar", folder)["peak_bytes"]
        for schedule, strategy in STRATEGIES.items():
            result = run_once(parts, count, MODELS[name], strategy, folder)
            result["memory_bytes"] = result["peak_bytes"] - empty
            found[schedule, count] = result
            bench.rows.append({"case": f"{name} {schedule}", "parts": count, **result})
            print(
                f"{name:<5} {schedule:<13} {count:3d} parts  {result['memory_bytes'] / MIB:8.1f} MiB above the empty "
                f"process  {result['seconds']:7.3f} s an epoch  {result['hidden_bytes'] / MIB:8.1f} MiB on the wire",
                flush=True,
            )
    memory = {key: result["memory_bytes"] for key, result in found.items()}
    for schedule in STRATEGIES:
        line = slope([(count, memory[schedule, count]) for count in part_counts])
        print(f"{name} {schedule}: slope {line:.2f}")
        if schedule == "sequential":
            bench.bar(f"{name} sequential: slope of memory against parts", line, -0.9, unit="", at_least=False)
    at = min(JUDGED_PARTS, max(part_counts))
    share = memory["sequential", at] / memory["materialised", at]
    if name == "gat" and at == JUDGED_PARTS:
        bench.bar(f"gat at {at} parts: sequential's memory of materialised's", share, 0.25, at_least=False)
    else:
        print(f"{name} at {at} parts: sequential needs {share:.2f} of materialised's memory")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in MODELS if any(row["case"].startswith(name) for row in rows)]
    figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for schedule, style in zip(STRATEGIES, ("o--", "o-"), strict=True):
            points = [(row["parts"], row["memory_bytes"] / MIB) for row in rows if row["case"] == f"{name} {schedule}"]
            axis.loglog(*zip(*points, strict=True), style, base=2, label=schedule)
        first = points[0]
        ideal = [(parts, first[1] * first[0] / parts) for parts, _ in points]
        axis.loglog(*zip(*ideal, strict=True), ":", color="grey", base=2, label="1 / parts")
        axis.set(title=name.upper(), xlabel="workers (one part each)", xticks=[parts for parts, _ in points])
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_major_formatter("{x:.0f}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("peak memory per worker above\nthe empty process, MiB")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main() -> int:
    bench = Bench("memory", parse(__doc__, plots=True))
    quick = bench.options.quick
    spec = f"synthetic:dense?nodes={20_000 if quick else 120_000}"
    part_counts = (1, 2, 4) if quick else (1, 2, 4, 8, 16)
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            if bench.wanted(name):
                measure(bench, name, spec, part_counts, Path(folder))
    if bench.options.plot is not None:
        draw(bench.rows, bench.options.plot)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
