"""An epoch over slow links: raw, bf16 and quantised rows, each with and without overlap, beside what is possible.

    python -m benchmarks.network [--quick] [--only "gcn, 30 Mb/s"] [--json FILE] [--plot FILE.png]

4 workers of one thread in 4 network namespaces on a switch (root and iproute2 needed), every link shaped with `tc tbf`
to a stated bandwidth in both directions; `synthetic:arxiv` in 4 parts, 3 layers of 256 (`--quick`: a tenth of it). All
forms of rows run in the same processes, one after another; an epoch is forward, backward, gradient all-reduce and step.
"no overlap" exchanges the whole halo and then aggregates; "overlap" is the schedule `overlapped`.

The limit of a case is max(compute, bytes / bandwidth): compute is the processor time of all workers in the epoch,
divided by the cores that they share; bytes are those that cross the busiest link, in or out, in the forward pass, then
in the backward pass, which cannot begin before the other has ended, and gradients. A point counts
as communication-bound where raw rows travel for at least three times as long as is computed with the adaptive codec;
elsewhere no form of rows could make an epoch 3.01 times as fast.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Bench, parse
from benchmarks.hosts import Hosts, ask, workers_behind_links
from weft.aggregate import OVERLAPPED, DistributedGraph, Schedule, format_named, order_for_overlap
from weft.aggregate.adaptive import Adaptive
from weft.comm import Communicator, all_reduce_gradients, open_communicator
from weft.layers import ModelConfig, build_model
from weft.partitioning import load_shard
from weft.training.loss import GlobalLoss

WORKERS, CORES = 4, 2
MODELS = {"gcn": {"name": "gcn", "layers": 3, "hidden": 256}, "sage": {"name": "sage", "layers": 3, "hidden": 256}}
CODECS = ("raw", "bf16", "int8", "int4", "adaptive")
BANDWIDTHS: dict[str, tuple[float | None, ...]] = {  # Mb/s; None: as fast as the machine can
    "gcn": (30.0, 100.0, 300.0, 1000.0, None),
    "sage": (100.0, 300.0),
}
SPEED_BAR, LIMIT_BAR, BOUND = 3.01, 1.3, 3.0
ASSIGNED_EPOCHS = 50  # that one choice of bits serves: its seconds are shared out over them


# -- one worker ------------------------------------------------------------------------------------------------


def serve(parts: Path) -> None:
    """Reads {"model", "codec", "overlap", "epochs"} line by line, and answers with what every epoch took."""
    torch.set_num_threads(1)
    comm = open_communicator(600.0)
    shard = order_for_overlap(load_shard(parts, comm.worker, comm.num_workers), comm)
    for line in sys.stdin:
        print(json.dumps(measure_epochs(comm, shard, **json.loads(line))), flush=True)


def measure_epochs(
    comm: Communicator, shard: Any, model: dict[str, Any], codec: str, overlap: bool, epochs: int
) -> dict[str, Any]:
    schedule = OVERLAPPED if overlap else Schedule(prefetch=0)
    graph = DistributedGraph(shard, comm, format_named(codec), schedule)
    torch.manual_seed(0)
    module = build_model(ModelConfig(**model), shard.x.shape[1], shard.num_classes)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    loss_of = GlobalLoss(shard.y, shard.train_mask.nonzero().squeeze(1), shard.num_classes, "none", comm)
    graph.hold_constant(shard.x)
    seconds, processor, sent, assigning = [], [], [], 0.0
    for epoch in range(1, epochs + 2):
        comm.barrier("epoch")
        started, used, before = time.perf_counter(), time.process_time(), dict(comm.sent)
        optimiser.zero_grad()
        graph.noise.begin(epoch)
        loss_of(module(graph.view, shard.x)).backward()
        all_reduce_gradients(comm, list(module.parameters()))
        optimiser.step()
        comm.barrier("end of epoch")
        seconds.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
        rows = [comm.sent[kind] - before[kind] for kind in ("hidden_forward", "hidden_backward")]
        gradients = comm.sent["gradients"] - before["gradients"]
        sent.append([*rows, gradients * 2 * (WORKERS - 1) / WORKERS])  # what any all-reduce sends at least
        graph.format.end_epoch(epoch, comm)
    bits: dict[int, int] = {}
    if isinstance(graph.format, Adaptive):
        chosen = graph.format.end_epoch(graph.format.cycle, comm)  # once more, the channels being known
        assigning = 0.0 if chosen is None else chosen.seconds
        for directions in graph.format.histogram().values():
            for counts in directions.values():
                for number, count in counts.items():
                    bits[number] = bits.get(number, 0) + count
    # The first epoch also aggregates the constant input, and has no bits chosen yet.
    return {
        "seconds": statistics.median(seconds[1:]),
        "processor": statistics.median(processor[1:]),
        "bytes": sent[-1],
        "assign_seconds": assigning,
        "bits": bits,
    }


# -- all of them -----------------------------------------------------------------------------------------------


def sweep(bench: Bench, hosts: Hosts, workers: list[Any], name: str, bandwidths: tuple[float | None, ...]) -> None:
    for megabits in bandwidths:
        where = f"{name}, unshaped" if megabits is None else f"{name}, {megabits:g} Mb/s"
        if not bench.wanted(where):
            continue
        hosts.shape(megabits)
        found: dict[tuple[str, bool], dict[str, float]] = {}
        for codec in CODECS:
            for overlap in (False, True):
                slow = megabits is not None and megabits < 300 and codec in ("raw", "bf16")
                epochs = 1 if slow else 5
                question = {"model": MODELS[name], "codec": codec, "overlap": overlap, "epochs": epochs}
                answers = ask(workers, question)
                rate = None if megabits is None else megabits * 1e6 / 8
                compute = sum(answer["processor"] for answer in answers) / CORES
                # What a worker sends back are the gradients of the rows that came to it: as many bytes.
                busiest = max(max(answer["bytes"][:2]) for answer in answers)
                travel = 0.0 if rate is None else (2 * busiest + answers[0]["bytes"][2]) / rate
                result = {
                    "seconds": statistics.median(answer["seconds"] for answer in answers),
                    "compute": compute,
                    "travel": travel,
                    "limit": max(compute, travel),
                    "megabytes": sum(sum(answer["bytes"]) for answer in answers) / 1e6,
                    "assign_seconds": max(answer["assign_seconds"] for answer in answers),
                }
                found[codec, overlap] = result
                case = f"{where}, {codec}{' + overlap' if overlap else ''}"
                bench.rows.append({"case": case, "megabits": megabits, "codec": codec, "overlap": overlap, **result})
                counts: dict[str, int] = {}
                for answer in answers:
                    for bits, count in answer["bits"].items():
                        counts[bits] = counts.get(bits, 0) + count
                shares = f"   rows by bits {counts}" if counts else ""
                print(
                    f"{case:<42} {result['seconds']:8.3f} s   limit {result['limit']:7.3f} s (compute {compute:6.3f}, "
                    f"travel {travel:7.3f})   {result['megabytes']:7.1f} MB{shares}",
                    flush=True,
                )
        plain, best = found["raw", False], found["adaptive", True]
        if plain["travel"] >= BOUND * best["compute"]:
            bench.bar(f"{where}: adaptive + overlap against raw", plain["seconds"] / best["seconds"], SPEED_BAR)
            bench.bar(
                f"{where}: adaptive + overlap against its limit",
                best["seconds"] / best["limit"],
                LIMIT_BAR,
                at_least=False,
            )
        share = best["assign_seconds"] / (ASSIGNED_EPOCHS * best["seconds"])
        bench.bar(f"{where}: per cent of the time spent choosing bits", 100 * share, 1.0, unit="", at_least=False)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["case"].split(",")[0] for row in rows))
    figure, axes = pyplot.subplots(1, len(names), figsize=(6 * len(names), 4.5), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        shaped = [row for row in rows if row["case"].startswith(name) and row["megabits"] is not None]
        for color, codec in enumerate(CODECS):
            for overlap, style in ((False, "o--"), (True, "o-")):
                points = [
                    (r["megabits"], r["seconds"]) for r in shaped if (r["codec"], r["overlap"]) == (codec, overlap)
                ]
                label = f"{codec} + overlap" if overlap else codec
                axis.loglog(*zip(*points, strict=True), style, color=f"C{color}", label=label, markersize=4)
        limits = [(row["megabits"], row["limit"]) for row in shaped if row["codec"] == "adaptive" and row["overlap"]]
        axis.loglog(*zip(*limits, strict=True), ":", color="black", label="limit of adaptive")
        axis.set(title=name.upper(), xlabel="bandwidth of every link, Mb/s", xticks=[m for m, _ in limits])
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.xaxis.set_minor_formatter("")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("seconds an epoch")
    axes[0][0].legend(fontsize=8, loc="upper right")  # where there is room: seconds fall with bandwidth
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]))
        return 0
    bench = Bench("network", parse(__doc__, plots=True))
    quick = bench.options.quick
    graph = "synthetic:arxiv?nodes=16934" if quick else "synthetic:arxiv"
    with workers_behind_links(WORKERS, "benchmarks.network", graph) as (hosts, workers):
        for name in MODELS:
            if not (quick and name == "sage"):
                sweep(bench, hosts, workers, name, (100.0, None) if quick else BANDWIDTHS[name])
    if bench.options.plot is not None:
        draw(bench.rows, bench.options.plot)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
