"""Accuracy with quantised rows beside raw ones, and how the gradient falls.

    WEFT_DATA=FOLDER python -m benchmarks.convergence [--quick] [--only cora] [--json FILE] [--plot FILE.png]

GCN and SAGE on real graphs (FOLDER holds them as NAME.npz) and on `synthetic:arxiv`, 4 workers of one thread on this
machine, five seeds: test accuracy of the epoch that validation chose, with raw rows (preset `full`), with the adaptive
codec and the overlap of the preset `adaqp`, and with 2 bits for every row under the same overlap. The bar: adaptive
within 0.30 points of raw in the mean over the seeds.
The plot shows, under plain gradient descent with quantised rows on cora, the squared norm of the exact gradient,
averaged over the epochs so far; `--only descent --plot FILE.png` draws it alone. All runs take place in the same four
processes. `--quick`: one seed on cora.
"""

import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Bench, parse
from benchmarks.hosts import ask, workers_here
from weft.aggregate import (
    MATERIALISED,
    OVERLAPPED,
    DistributedGraph,
    Format,
    format_named,
    order_for_overlap,
)
from weft.comm import Communicator, all_reduce_gradients, open_communicator
from weft.graph.splits import known
from weft.layers import ModelConfig, build_model
from weft.partitioning import load_shard
from weft.prepare import partition
from weft.training.evaluate import predict, score
from weft.training.loss import GlobalLoss
from weft.training.objective import input_rows, labels_and_masks
from weft.training.optim import OptimConfig, build_optimiser
from weft.training.settings import TrainConfig

WORKERS, SEEDS = 4, 5
CODECS = ("raw", "adaptive", "int2")
BAR = 0.30  # points
PLANETOID: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 16, "dropout": 0.5, "input_dropout": 0.5, "row_normalise": True},
    "optim": {"lr": 0.01, "weight_decay": 5e-4, "decay_first_layer_only": True},
    "epochs": 200,
    "eval_every": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "cora": PLANETOID,
    "pubmed": PLANETOID,
    "amazon-computers": {
        "model": {"layers": 2, "hidden": 128, "norm": "layer", "dropout": 0.5},
        "optim": {"lr": 0.005, "weight_decay": 5e-5},
        "epochs": 120,
        "eval_every": 5,
    },
    "coauthor-physics": {
        "model": {"layers": 2, "hidden": 64, "norm": "layer", "dropout": 0.5},
        "optim": {"lr": 0.005, "weight_decay": 5e-5},
        "epochs": 40,
        "eval_every": 5,
    },
    "synthetic:arxiv": {
        "model": {"layers": 3, "hidden": 128, "norm": "layer", "dropout": 0.3},
        "optim": {"lr": 0.01},
        "epochs": 50,
        "eval_every": 10,
    },
}
ASSIGN_CYCLE = 20
STYLES: dict[str, dict[str, Any]] = {  # the curves may coincide
    "raw": {"linewidth": 6, "alpha": 0.35},
    "adaptive": {"linewidth": 3, "linestyle": "--"},
    "int2": {"linewidth": 1.2, "color": "black"},
}
DESCENT: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 16, "dropout": 0.0},
    "optim": {"name": "sgd", "lr": 0.3, "momentum": 0.0},
    "epochs": 1000,
    "eval_every": 0,
}


# -- one worker ------------------------------------------------------------------------------------------------


class Task:
    """What one worker trains: a model on its part of a graph."""

    def __init__(
        self, comm: Communicator, shard: Any, format: Format, name: str, seed: int, case: dict[str, Any]
    ) -> None:
        schedule = OVERLAPPED if format.traits.packs else MATERIALISED
        self.comm, self.graph = comm, DistributedGraph(shard, comm, format, schedule)
        self.graph.noise.seed = seed
        torch.manual_seed(seed)
        self.model = build_model(ModelConfig(name=name, **case["model"]), shard.x.shape[1], shard.num_classes)
        settings = TrainConfig()
        self.x, (self.y, self.masks) = (
            input_rows(self.graph, self.model, settings),
            labels_and_masks(self.graph, settings),
        )
        rows = (self.masks["train"] & known(self.y)).nonzero().squeeze(1)
        self.loss_of = GlobalLoss(self.y, rows, shard.num_classes, "none", comm)
        self.optimiser = build_optimiser(OptimConfig(**case["optim"]), self.model)

    def backward(self, epoch: int) -> int:
        """Gradients of the whole graph with rows in the format of the task; bytes that this worker sent for them."""
        self.optimiser.zero_grad()
        self.graph.noise.begin(epoch)
        before = self._sent()
        self.loss_of(self.model(self.graph.view, self.x)).backward()
        sent = self._sent() - before
        all_reduce_gradients(self.comm, list(self.model.parameters()))
        return sent

    def exact_gradient(self) -> torch.Tensor:
        """At these weights, with rows as they are."""
        format, self.graph.format = self.graph.format, format_named("raw")
        self.backward(0)
        self.graph.format = format
        return self.gradient()

    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def _sent(self) -> int:
        return self.comm.sent["hidden_forward"] + self.comm.sent["hidden_backward"]


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Reads questions line by line, each about the parts of a graph, and answers them."""
    torch.set_num_threads(1)
    comm = open_communicator(600.0)
    opened: dict[str, Any] = {}
    for line in sys.stdin:
        question = json.loads(line)
        parts = question.pop("parts")
        if parts not in opened:
            opened = {parts: order_for_overlap(load_shard(parts, comm.worker, comm.num_workers), comm)}
        print(json.dumps(answer(comm, opened[parts], **question)), flush=True)


def train(comm: Communicator, shard: Any, name: str, codec: str, seed: int, case: dict[str, Any]) -> dict[str, Any]:
    task = Task(comm, shard, format_named(codec, cycle=ASSIGN_CYCLE), name, seed, case)
    best, norms, sent = (-1.0, 0.0), [], 0
    for epoch in range(1, case["epochs"] + 1):
        task.model.train()
        if not case["eval_every"]:
            norms.append(float(task.exact_gradient().square().sum()))
        sent = task.backward(epoch)
        task.optimiser.step()
        task.graph.format.end_epoch(epoch, comm)
        if case["eval_every"] and epoch % case["eval_every"] == 0:
            values = score(predict(task.model, task.graph, task.x), task.y, task.masks, "accuracy", task.graph)
            best = max(best, (values["val"], values["test"]))
    return {"test": 100 * best[1], "norms": norms, "bytes": sent}


# -- all of them -----------------------------------------------------------------------------------------------


def measure(bench: Bench, workers: list[Any], data: str, parts: Path, seeds: int) -> None:
    for name in ("gcn", "sage"):
        means: dict[str, float] = {}
        for codec in CODECS:
            values, sent = [], 0
            for seed in range(seeds):
                question = {"parts": str(parts), "name": name, "codec": codec, "seed": seed, "case": CASES[data]}
                answers = ask(workers, question)
                values.append(answers[0]["test"])
                sent = sum(answer["bytes"] for answer in answers)
            means[codec] = statistics.mean(values)
            spread = statistics.stdev(values) if seeds > 1 else 0.0
            row = {
                "case": f"{data} {name} {codec}",
                "mean": means[codec],
                "stdev": spread,
                "values": values,
                "bytes": sent,
            }
            bench.rows.append(row)
            change = means[codec] - means["raw"]
            print(f"{data:<18} {name:<5} {codec:<9} {means[codec]:6.2f} ± {spread:4.2f} %   {change:+5.2f} points   "
                  f"{sent / 1e6:8.2f} MB an epoch at the end", flush=True)  # fmt: skip
        lost = means["raw"] - means["adaptive"]
        bench.bar(f"{data} {name}: points that adaptive loses", lost, BAR, unit="", at_least=False)


def gradients(bench: Bench, workers: list[Any], parts: Path, path: Path) -> None:
    """Plots how the gradient falls under plain descent: no dropout, no momentum, a fixed step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, name in zip(axes, ("gcn", "sage"), strict=True):
        for codec in CODECS:
            norms = ask(workers, {"parts": str(parts), "name": name, "codec": codec, "seed": 0, "case": DESCENT})[0][
                "norms"
            ]
            epochs = range(1, len(norms) + 1)
            running = [total / epoch for total, epoch in zip(itertools.accumulate(norms), epochs, strict=True)]
            axis.loglog(epochs, running, label=codec, **STYLES[codec])
            bench.rows.append({"case": f"descent {name} {codec}", "mean_squared_norm": running[-1]})
        axis.loglog(epochs, [running[-1] * len(norms) / epoch for epoch in epochs], ":", color="grey", label="1 / T")
        axis.set(title=f"{name.upper()} on cora", xlabel="epochs T")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("mean squared gradient norm\nof the first T epochs")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main() -> int:
    if sys.argv[1:] == ["--serve"]:
        serve(train)
        return 0
    bench = Bench("convergence", parse(__doc__, plots=True))
    quick = bench.options.quick
    with tempfile.TemporaryDirectory() as folder, workers_here(WORKERS, "benchmarks.convergence") as workers:
        for data in CASES:
            descends = data == "cora" and bench.options.plot is not None and bench.wanted("cora descent")
            if not (bench.wanted(data) or descends) or (quick and data != "cora"):
                continue
            parts = Path(folder) / data.replace(":", "-")
            partition(data, WORKERS, parts)
            if bench.wanted(data):
                measure(bench, workers, data, parts, 1 if quick else SEEDS)
            if descends and bench.options.plot is not None:
                gradients(bench, workers, parts, bench.options.plot)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
