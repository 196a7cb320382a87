"""Products elsewhere: what a task costs with each invoker, how much latency a pipeline hides, and what staleness costs.

    WEFT_DATA=FOLDER python -m benchmarks.serverless [--quick] [--only latency] [--json FILE]

- invokers: tasks of one shape (1600 rows, 602 to 128 columns, 4 MB there) through inline, pool, lambda leases and
  lambda payloads, the last two against an endpoint on this machine; tasks a second and bytes a task.
- latency: 4 layers of GCN on 60,000 vertices of `synthetic:arxiv` in 16 intervals, a pool of 16 workers, each of which
  waits 20 or 100 ms before it answers; epochs with and without such waits in turn. An epoch in order (pipe) waits once
  for every tensor step; what counts is the share of those waits by which an epoch with staleness 0 does not take longer
  than one without any, in the median of such pairs. The bar is 60 %.
- staleness: epochs until validation accuracy reaches a target, in order and with staleness 0, 1 and 2, on
  `coauthor-physics` and `synthetic:arxiv`, 16 intervals, a pool of 4 workers that wait 20 ms before they answer.
- gather: numbers gathered in an epoch, by what the stages of a model say, against the original's order of operations
  (aggregate first, every epoch) on Reddit's shape. The bar is 5x.
- cost: an epoch of the original's four graphs' shapes on as many servers as it used, of the types that it used and of
  today's, modelled by the simulator with servers as fast as this machine (twice as fast where they were twice as large)
  and functions as fast as a pool's worker on it: CPU servers, all products in functions, GPU servers. Modelled figures,
  all of them.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.harness import Bench, parse
from weft import kernels
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph import open_graph
from weft.graph.splits import known
from weft.layers import ModelConfig, build_model
from weft.partitioning import make_shards
from weft.serverless.deploy import HANDLER
from weft.serverless.deployments import calibrate, compare_deployments
from weft.serverless.endpoint import serving
from weft.serverless.executor import PipelineExecutor
from weft.serverless.invoker import InlineInvoker, Invoker
from weft.serverless.lambdas import LambdaInvoker
from weft.serverless.payloads import PayloadInvoker
from weft.serverless.pool import PoolInvoker
from weft.serverless.prices import read_prices
from weft.serverless.schedule import STEADY_EPOCHS
from weft.serverless.settings import ExecutorConfig
from weft.serverless.simulate import Graph, Machine, gcn
from weft.serverless.stages import compile_stages
from weft.training.evaluate import predict, score
from weft.training.loss import GlobalLoss
from weft.training.objective import input_rows, labels_and_masks
from weft.training.optim import OptimConfig, build_optimiser
from weft.training.settings import TrainConfig
from weft_function.program import Op, Program
from weft_function.task import Request, TaskId, TaskKind

HIDES, FEWER = 60.0, 5.0  # per cent; times
INTERVALS = 16
LATENCY_GRAPH = "synthetic:arxiv?nodes=60000"
WAITS_MS = (20, 100)
UNCOUNTED = STEADY_EPOCHS + 2  # epochs before intervals run ahead of each other, and until memory is warm
STALE_WORKERS, STALE_DELAY_MS = 4, 20
REDDIT = {"features": 602, "hidden": 128, "classes": 41}


# -- what a task costs -----------------------------------------------------------------------------------------


def some_request(number: int, rng: np.random.Generator) -> Request:
    program = Program(("x",), ("y",), (Op("linear", ("x",), "h", ("w",)), Op("relu", ("h",), "y")))
    task = TaskId("run", 1, 0, number, 0, TaskKind.APPLY_VERTEX)
    weights = {"w": np.ones((128, 602), np.float32)}
    return Request(task, "forward", program, 1, weights, {"x": rng.random((1600, 602), np.float32)})


def invokers(bench: Bench, quick: bool) -> None:
    count = 20 if quick else 100
    rng = np.random.default_rng(0)
    requests = [some_request(number, rng) for number in range(count)]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        os.environ.setdefault(name, "local")  # the client signs what it sends, also to this machine
    with serving({"weft": HANDLER}) as (address, _):
        makes: dict[str, Callable[[], Invoker]] = {
            "inline": InlineInvoker,
            "pool": lambda: PoolInvoker(2),
            "lambda lease": lambda: LambdaInvoker("weft", 2, "tcp://127.0.0.1:*", address),
            "lambda payload": lambda: PayloadInvoker("weft", 2, address),
        }
        for name, make in makes.items():
            invoker = make()
            try:
                for warm in [invoker.submit(request, 120.0) for request in requests[:4]]:
                    warm.result()
                before, started = invoker.usage(), time.perf_counter()
                for future in [invoker.submit(request, 120.0) for request in requests]:
                    future.result()
                seconds, used = time.perf_counter() - started, invoker.usage() - before
            finally:
                invoker.close()
            megabytes = (used.bytes_out + used.bytes_in) / 1e6 / count
            bench.rows.append({"case": name, "tasks_per_second": count / seconds, "megabytes": megabytes})
            print(f"{name:<16} {count / seconds:8.1f} tasks/s   {megabytes:6.2f} MB a task", flush=True)


# -- a run -----------------------------------------------------------------------------------------------------


class Run:
    """One process's run over a whole graph."""

    def __init__(self, data: str, model: dict[str, Any], lr: float, config: ExecutorConfig, epochs: int) -> None:
        graph = open_graph(data)
        (shard,) = make_shards(graph, torch.zeros(graph.num_nodes, dtype=torch.int32), 1)
        self.distributed = DistributedGraph(shard, Communicator.alone())
        torch.manual_seed(0)
        assert shard.x is not None
        self.model = build_model(ModelConfig(**model), shard.x.shape[1], shard.num_classes)
        self.x = input_rows(self.distributed, self.model, TrainConfig())
        self.y, self.masks = labels_and_masks(self.distributed, TrainConfig())
        rows = (self.masks["train"] & known(self.y)).nonzero().squeeze(1)
        loss_of = GlobalLoss(self.y, rows, shard.num_classes, "none", self.distributed.comm)
        optim = OptimConfig(lr=lr)
        self.executor = PipelineExecutor(self.distributed, self.model, self.x, loss_of, config, optim, 0, epochs, True)
        self.executor.start(build_optimiser(optim, self.model), 0)

    def epoch(self, number: int) -> float:
        return float(self.executor.epoch(number)["seconds"])

    def accuracy(self) -> float:
        return score(predict(self.model, self.distributed, self.x), self.y, self.masks, "accuracy", self.distributed)[
            "val"
        ]

    def close(self) -> None:
        self.executor.close()


def interleaved(staleness: str | int, waits: Sequence[int], rounds: int) -> tuple[dict[int, list[float]], int]:
    """Seconds of epochs under each wait, one epoch of each in turn; and how many tensor steps an epoch has."""
    model = {"name": "gcn", "layers": 4, "hidden": 128, "dropout": 0.0}
    runs: dict[int, Run] = {}
    try:
        for wait in waits:
            config = ExecutorConfig(
                name="pool", intervals=INTERVALS, workers=INTERVALS, placement="functions", staleness=staleness,
                delay_ms=wait, hedge=0.0,
            )  # fmt: skip
            runs[wait] = Run(LATENCY_GRAPH, model, 0.01, config, rounds + UNCOUNTED)
        numbers = range(1, rounds + UNCOUNTED + 1)
        times = [{wait: run.epoch(number) for wait, run in runs.items()} for number in numbers][UNCOUNTED:]
        return {wait: [one[wait] for one in times] for wait in waits}, 2 * len(runs[0].executor.server.stages) - 1
    finally:
        for run in runs.values():
            run.close()


def latency(bench: Bench, quick: bool) -> None:
    stale, steps = interleaved(0, (0, *WAITS_MS), 5 if quick else 41)
    pipe, _ = interleaved("pipe", (0, *WAITS_MS), 5 if quick else 9)
    for wait in (0, *WAITS_MS):
        medians = {"stale": statistics.median(stale[wait]), "pipe": statistics.median(pipe[wait])}
        longer = {
            side: statistics.median(slow - quick for slow, quick in zip(times[wait], times[0], strict=True))
            for side, times in (("stale", stale), ("pipe", pipe))
        }
        print(
            f"{wait:4d} ms: staleness 0 {medians['stale']:.3f} s (longer by {longer['stale']:+.3f}), pipe "
            f"{medians['pipe']:.3f} s (longer by {longer['pipe']:+.3f}) an epoch of {steps} tensor steps",
            flush=True,
        )
        bench.rows.append({"case": f"{wait} ms", "steps": steps, **medians, "longer": longer})
        if wait:
            hidden = 100 * (1 - longer["stale"] / (steps * wait / 1000))
            bench.bar(f"per cent of {steps} waits of {wait} ms that staleness 0 hides", hidden, HIDES, unit="")


TARGETS: dict[str, dict[str, Any]] = {
    "coauthor-physics": {
        "model": {"name": "gcn", "layers": 2, "hidden": 64, "dropout": 0.5}, "lr": 0.005, "target": 0.955, "most": 60,
    },
    "synthetic:arxiv": {
        "model": {"name": "gcn", "layers": 3, "hidden": 128, "norm": "layer", "dropout": 0.3}, "lr": 0.01,
        "target": 0.72, "most": 120,
    },
}  # fmt: skip


def staleness(bench: Bench, quick: bool) -> None:
    for data, case in TARGETS.items():
        if quick and data != "synthetic:arxiv":
            continue
        try:
            open_graph(data)
        except UserError as error:
            bench.note(f"{data} is left out: {error}")
            continue
        target, most = (0.4, 8) if quick else (case["target"], case["most"])
        for bound in ("pipe", 0, 1, 2):
            config = ExecutorConfig(
                name="pool", intervals=INTERVALS, workers=STALE_WORKERS, placement="functions", staleness=bound,
                delay_ms=STALE_DELAY_MS, hedge=0.0,
            )  # fmt: skip
            run = Run(data, case["model"], case["lr"], config, most)
            took, value = None, 0.0
            for epoch in range(1, most + 1):
                run.epoch(epoch)
                value = run.accuracy()
                if value >= target:
                    took = epoch
                    break
            run.close()
            bench.rows.append({"case": f"{data}, {bound}", "epochs": took, "accuracy": value})
            print(
                f"{data:<18} staleness {bound!s:<5} {took or 'more than ' + str(most)} epochs to {target:.1%}",
                flush=True,
            )


def gather(bench: Bench) -> None:
    """Numbers that one edge brings in an epoch, forward and backward."""
    features, hidden, classes = REDDIT.values()
    model = build_model(ModelConfig(name="gcn", layers=2, hidden=hidden), features, classes)
    ours = sum(2 * stage.gathering.width for stage in compile_stages(model) if stage.gathering is not None)
    original = features + hidden + hidden  # forward at the input and at the second layer, backward at the second
    bench.rows.append({"case": "gather", "ours": ours, "original": original})
    print(f"numbers gathered along an edge of Reddit's shape: {ours} of {original}", flush=True)
    bench.bar("gather work against the original's order", original / ours, FEWER)


class Shape(NamedTuple):
    """One of the original's graphs, and what its artifact's scripts run it on."""

    graph: Graph
    hidden: int
    servers: int
    then: str  # the servers' type
    today: str = "c7g.2xlarge"
    size: int = 1  # servers have so many times the processors of the others


SHAPES = (
    Shape(Graph("Reddit-small", 233e3, 114.8e6, 602, 41, remote=1.0), 128, 2, "c5.2xlarge"),
    Shape(Graph("Reddit-large", 1.1e6, 1.3e9, 301, 50, remote=4.0), 128, 12, "c5n.2xlarge"),
    Shape(Graph("Amazon", 9.2e6, 313.9e6, 300, 25, remote=2.0), 64, 8, "c5n.2xlarge"),
    Shape(Graph("Friendster", 65.6e6, 3.6e9, 32, 50, remote=4.0), 64, 32, "c5n.4xlarge", "c7g.4xlarge", size=2),
)
GPUS_THEN = "p3.2xlarge"


def as_fast_as_here(bench: Bench) -> Machine:
    """A server like this machine, which gathers from memory, not from a cache, and functions like a pool's worker."""
    rows, width, degree = 1_000_000, 64, 8
    x, weight = torch.randn(rows, width), torch.randn(width, width)
    indptr = torch.arange(0, rows * degree + 1, degree)
    indices = torch.randint(0, rows, (rows * degree,), dtype=torch.int32)
    took = bench.measure({"gather": lambda: kernels.spmm(indptr, indices, x), "multiply": lambda: x @ weight})
    gather, multiply = indices.numel() * width * 4 / took["gather"], rows * width**2 / took["multiply"]
    return replace(calibrate(), gather=gather, multiply=multiply)


def cost(bench: Bench) -> None:
    """Modelled: nothing of this size was run."""
    machine, today = as_fast_as_here(bench), read_prices()
    bench.rows.append({"case": "machine", **asdict(machine)})
    print(
        f"a server gathers {machine.gather / 1e9:.1f} GB/s and multiplies {machine.multiply / 1e9:.0f} G/s, a function "
        f"{machine.function_multiply / 1e9:.0f} G/s; links of {machine.link * 8e-9:.0f} Gb/s"
    )
    for when in ("then", "today"):
        print(f"modelled, prices of servers {when}")
        for shape in SHAPES:
            prices = today.model_copy(
                update={"graph_server": shape.then, "gpu_server": GPUS_THEN}
                if when == "then"
                else {"graph_server": shape.today}
            )
            larger = replace(machine, gather=machine.gather * shape.size, multiply=machine.multiply * shape.size)
            deployments = compare_deployments(
                shape.graph, gcn(shape.graph, shape.hidden), shape.servers, larger, prices
            )
            for deployment in deployments:
                bench.rows.append({"case": f"{shape.graph.name}, {when}", **deployment.to_dict()})
            values = [deployment.cost.value / deployments[0].cost.value for deployment in deployments]
            cells = [
                f"{deployment.label} {deployment.epoch.seconds:7.2f} s ${deployment.cost.total:.5f} value {value:5.2f}"
                for deployment, value in zip(deployments, values, strict=True)
            ]
            print(f"{shape.graph.name:<13} {shape.servers:2d} {prices.graph_server}   " + "   ".join(cells), flush=True)


def main() -> int:
    bench = Bench("serverless", parse(__doc__))
    quick = bench.options.quick
    parts: dict[str, Callable[[], None]] = {
        "gather": lambda: gather(bench),
        "invokers": lambda: invokers(bench, quick),
        "latency": lambda: latency(bench, quick),
        "staleness": lambda: staleness(bench, quick),
        "cost": lambda: cost(bench),
    }
    for name, part in parts.items():
        if bench.wanted(name):
            part()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
