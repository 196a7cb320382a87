"""What adaptive bits are worth: the error of the gradient for the bytes that are sent.

    WEFT_DATA=FOLDER python -m benchmarks.adaptivity [--quick] [--only cora] [--json FILE] [--plot FILE.png]

GCN and SAGE on real graphs (FOLDER holds them as NAME.npz) and on `synthetic:arxiv`, 4 workers of one thread, trained
with raw rows for some epochs without dropout. There, at the same weights, gradients are computed with quantised rows,
20 times with fresh rounding (4 times on the large graph), and compared with the exact one: mean squared error over the
exact gradient's squared norm. The sides: 2, 4 or 8 bits for every row; adaptive bits of several fidelities; and the
same bits dealt out to the rows of each message at random, which takes the same bytes to the byte. The bar: adaptive's
error, at the default fidelity, is below that of the same bytes dealt out at random. All channels count as equally fast,
so that the choice does not hang on what this machine does besides. `--quick`: GCN on cora.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.convergence import CASES, WORKERS, Task, serve
from benchmarks.harness import Bench, parse
from benchmarks.hosts import ask, workers_here
from weft.aggregate import Adaptive, Format, MessageSet, format_named
from weft.comm import Channels, Communicator
from weft.prepare import partition

DRAWS = {"synthetic:arxiv": 4}  # 20 elsewhere: on a large graph one draw says almost all
FIDELITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
DEFAULT = 0.5
UNIFORM = ("int2", "int4", "int8")
BAR = 1.0
GIGABIT = 8e-9  # seconds per byte


# -- one worker ------------------------------------------------------------------------------------------------


class Dealt(Adaptive):
    """As many rows with each number of bits as adaptive chooses, whichever they are."""

    def choose(self, sets: Sequence[MessageSet], comm: Communicator) -> list[list[Tensor]]:
        draw = torch.Generator().manual_seed(comm.worker)
        return [
            [bits[torch.randperm(bits.numel(), generator=draw)] for bits in messages]
            for messages in super().choose(sets, comm)
        ]


def side(name: str, fidelity: float) -> Format:
    if name in UNIFORM:
        return format_named(name)
    format = (Dealt if name == "dealt" else Adaptive)(cycle=1, fidelity=fidelity)
    alike = torch.full((WORKERS, WORKERS), 1.0, dtype=torch.float64)
    format.channels = Channels(0 * alike, GIGABIT * alike)
    return format


def probe(
    comm: Communicator, shard: Any, name: str, case: dict[str, Any], draws: int, sides: list[list[Any]]
) -> dict[str, Any]:
    """Of each side: the relative squared error, and the bytes of one pass."""
    task = Task(comm, shard, format_named("raw"), name, 0, case)
    for epoch in range(1, case["epochs"] + 1):
        raw_bytes = task.backward(epoch)
        task.optimiser.step()
    exact = task.exact_gradient()
    found = []
    for kind, fidelity in sides:
        task.graph.format = format = side(kind, fidelity)
        if format.traits.adaptive:
            task.backward(1)
            format.end_epoch(1, comm)
        error, sent = 0.0, 0
        for draw in range(draws):
            sent = task.backward(2 + draw)
            error += float((task.gradient() - exact).square().sum() / exact.square().sum()) / draws
        found.append({"error": error, "bytes": sent})
    return {"sides": found, "raw_bytes": raw_bytes}


# -- all of them -----------------------------------------------------------------------------------------------


def case_of(data: str) -> dict[str, Any]:
    """A quarter of the training, where the gradient is still well away from nothing; nothing is dropped."""
    case = CASES[data]
    return {**case, "model": {**case["model"], "dropout": 0.0, "input_dropout": 0.0}, "epochs": case["epochs"] // 4}


def measure(bench: Bench, workers: list[Any], data: str, parts: Path, name: str, draws: int) -> dict[str, Any]:
    sides = [[kind, 0.0] for kind in UNIFORM]
    sides += [[kind, fidelity] for fidelity in FIDELITIES for kind in ("adaptive", "dealt")]
    question = {"parts": str(parts), "name": name, "case": case_of(data), "draws": draws, "sides": sides}
    answers = ask(workers, question)
    raw_bytes = sum(answer["raw_bytes"] for answer in answers)
    found: dict[tuple[str, float], tuple[float, float]] = {}
    for number, (kind, fidelity) in enumerate(sides):
        error = answers[0]["sides"][number]["error"]
        share = sum(answer["sides"][number]["bytes"] for answer in answers) / raw_bytes
        found[kind, fidelity] = share, error
        bench.rows.append(
            {"case": f"{data} {name} {kind}", "fidelity": fidelity, "share_of_raw_bytes": share, "squared_error": error}
        )
        what = kind if kind in UNIFORM else f"{kind}, fidelity {fidelity}"
        print(f"{data:<18} {name:<5} {what:<22} {share:6.1%} of raw bytes   squared error {error:.3e}", flush=True)
    ours, same_bytes = found["adaptive", DEFAULT], found["dealt", DEFAULT]
    assert ours[0] == same_bytes[0]
    bench.bar(
        f"{data} {name}: error of the same bits dealt out at random over adaptive's", same_bytes[1] / ours[1], BAR
    )
    bench.note(f"{data} {name}: 2 bits for every row have {found['int2', 0.0][1] / ours[1]:.1f} times adaptive's error")
    return found


def draw(found: dict[tuple[str, str], dict[tuple[str, float], tuple[float, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = len({data for data, _ in found})
    figure, axes = pyplot.subplots(2, columns, figsize=(3.4 * columns, 6.4), squeeze=False)
    for number, ((data, name), sides) in enumerate(found.items()):
        axis = axes[number % 2][number // 2]
        for kind, style in (("adaptive", "o-"), ("dealt", "s--")):
            points = sorted(point for (which, _), point in sides.items() if which == kind)
            label = "adaptive" if kind == "adaptive" else "the same bits, dealt out at random"
            axis.plot(*zip(*points, strict=True), style, label=label, markersize=4)
        uniform = [sides[kind, 0.0] for kind in UNIFORM]
        axis.plot(*zip(*uniform, strict=True), "k^", label="2, 4, 8 bits for every row")
        axis.set(title=f"{name.upper()} on {data}", yscale="log", xlabel="bytes, share of raw")
        axis.grid(alpha=0.3)
    for row in axes:
        row[0].set_ylabel("squared error of the gradient")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main() -> int:
    if sys.argv[1:] == ["--serve"]:
        serve(probe)
        return 0
    bench = Bench("adaptivity", parse(__doc__, plots=True))
    quick = bench.options.quick
    found = {}
    with tempfile.TemporaryDirectory() as folder, workers_here(WORKERS, "benchmarks.adaptivity") as workers:
        for data in CASES:
            if not bench.wanted(data) or (quick and data != "cora"):
                continue
            parts = Path(folder) / data.replace(":", "-")
            partition(data, WORKERS, parts)
            for name in ("gcn",) if quick else ("gcn", "sage"):
                found[data, name] = measure(bench, workers, data, parts, name, DRAWS.get(data, 20))
    if bench.options.plot is not None:
        draw(found, bench.options.plot)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
