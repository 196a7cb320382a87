"""Run folders as training leaves them, made up from a seed, for tests of whatever reads them."""

import json
import math
import random
from pathlib import Path
from typing import Any

from weft.training.runfolder import RunFolder

MIB = 2**20


def fake_run(
    path: Path,
    workers: int = 4,
    epochs: int = 120,
    seed: int = 0,
    metric: str = "accuracy",
    model: str = "sage",
    strategy: str = "single",
    summary: bool = True,
    trace: bool = True,
    codec: str = "raw",
    diverge_at: int | None = None,
    more: dict[str, Any] | None = None,
) -> RunFolder:
    """A finished run; without a summary, one that crashed. `more`: what each record has besides."""
    config = {
        "data": "synthetic:arxiv",
        "model": {"name": model, "layers": 3, "hidden": 256, "dropout": 0.5},
        "strategy": strategy,
        "comm": {"codec": codec, "deadline_seconds": 120},
        "workers": workers,
        "epochs": epochs,
        "seed": seed,
        "train": {"optimiser": "adam", "learning_rate": 0.01, "schedule": "cosine"},
    }
    chance = random.Random(seed)
    shrink = {"raw": 1.0, "bf16": 0.5, "adaptive": 0.3}[codec]
    with RunFolder.create(path, config) as run:
        run._write_events = lambda record: None  # type: ignore[method-assign]  # TensorBoard is slow and not read here
        for epoch in range(1, epochs + 1):
            record = _record(epoch, epochs, workers, metric, chance, shrink, codec, diverge_at)
            run.append(record | (more or {}))
    if trace:
        run.trace_file.write_text(json.dumps({"traceEvents": fake_events(workers, seed)}))
    if summary:
        run.write_summary(_summary(run, workers, epochs, seed, metric, model, strategy, chance))
    return run


def _record(
    epoch: int,
    epochs: int,
    workers: int,
    metric: str,
    chance: random.Random,
    shrink: float,
    codec: str,
    diverge_at: int | None,
) -> dict[str, Any]:
    seconds = (1.9 if epoch == 1 else 0.41) * (0.5 + 2 / (workers + 2)) * chance.uniform(0.96, 1.06)
    loss = 0.78 + 2.7 * math.exp(-epoch / 14) * chance.uniform(0.97, 1.03)
    quality = 0.735 - 0.6 * math.exp(-epoch / 11) + chance.gauss(0, 0.0035) - 0.00008 * epoch
    fade = shrink * (1 - 0.5 * epoch / epochs) if codec == "adaptive" else shrink
    hidden = int(38 * MIB * (workers - 1) * fade)
    record: dict[str, Any] = {
        "epoch": epoch,
        "seconds": seconds,
        "train_loss": math.nan if diverge_at and epoch >= diverge_at else loss,
        "learning_rate": 0.005 * (1 + math.cos(math.pi * epoch / epochs)),
        "grad_norm": 2.1 * math.exp(-epoch / 30) * chance.uniform(0.8, 1.3) + 0.05,
        "wire_bytes": {
            "features": 0,
            "hidden_forward": hidden,
            "hidden_backward": int(hidden * 0.93),
            "gradients": int(1.4 * MIB) * (workers - 1) * 2,
            "ids": 0,
        },
        "phase_seconds": {
            "forward": 0.31 * seconds,
            "backward": 0.42 * seconds,
            "exchange_wait": (0.16 if workers > 1 else 0) * seconds,
            "all_reduce": (0.03 if workers > 1 else 0) * seconds,
            "optimiser": 0.02 * seconds,
            "evaluate": 0.04 * seconds,
        },
    }
    if epoch % 2 == 0 or epoch == 1:
        record[f"val_{metric}"], record[f"test_{metric}"] = quality, quality - 0.012
    return record


def _summary(
    run: RunFolder, workers: int, epochs: int, seed: int, metric: str, model: str, strategy: str, chance: random.Random
) -> dict[str, Any]:
    records = run.metrics()
    best = max((r for r in records if f"val_{metric}" in r), key=lambda r: r[f"val_{metric}"])
    seconds = sorted(r["seconds"] for r in records)
    return {
        "status": "finished",
        "metric": metric,
        "strategy": strategy,
        "model": model,
        "workers": workers,
        "epochs": epochs,
        "seed": seed,
        "train_loss": records[-1]["train_loss"],
        f"val_{metric}": best[f"val_{metric}"],
        f"test_{metric}": best[f"test_{metric}"],
        "best_epoch": best["epoch"],
        "epoch_seconds": {
            "median": seconds[len(seconds) // 2],
            "p90": seconds[9 * len(seconds) // 10],
            "total": sum(seconds),
        },
        "wire_bytes": {"per_epoch": sum(records[0]["wire_bytes"].values()), **records[0]["wire_bytes"]},
        "peak_rss_bytes": [int(chance.uniform(0.9, 1.15) * (420 + 2200 / workers) * MIB) for _ in range(workers)],
        "weights_sha256": "0" * 64,
        "graph": {
            "name": "synthetic:arxiv",
            "num_nodes": 169343,
            "num_edges": 1166243,
            "num_features": 128,
            "num_classes": 40,
        },
        "partition": {
            "method": "metis",
            "parts": workers,
            "cut_fraction": 0.083 * workers / 4,
            "halo_rows": [11234, 12890, 10021, 13456][:workers],
            "vertex_balance": 1.02,
            "edge_balance": 1.07,
            "train_balance": 1.03,
        }
        if workers > 1
        else None,
        "machine": {
            "cpu": "Example 9000 at 3.1 GHz",
            "cores": 16,
            "memory_bytes": 64 * 2**30,
            "torch": "2.13.0",
            "python": "3.11.7",
            "kernels": "native",
        },
        "phase_seconds": records[-1]["phase_seconds"],
    }


def fake_events(workers: int, seed: int = 0, epochs: int = 4, layers: int = 3) -> list[dict[str, Any]]:
    """A merged trace: forward and backward by layer with waits inside, the gradient sum, the optimiser."""
    chance = random.Random(seed)
    events: list[dict[str, Any]] = []
    pace = [chance.uniform(0.85, 1.15) for _ in range(workers)]
    for epoch in range(1, epochs + 1):
        base = (epoch - 1) * 430_000.0
        for worker in range(workers):
            now = base

            def span(name: str, kind: str, start: float, end: float, worker: int = worker, **args: object) -> None:
                event = {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": end - start, "pid": worker, "tid": 0}
                events.append(event | {"args": args})

            for way, cost, order in (("forward", 34e3, range(layers)), ("backward", 48e3, reversed(range(layers)))):
                begin = now
                for layer in order:
                    start = now
                    if workers > 1:
                        span("pack", "communicate", now, now + 3e3, layer=layer)
                        now += 3e3
                    aggregate = 0.4 * cost * pace[worker]
                    span("aggregate", "compute", now, now + aggregate, layer=layer)
                    now += aggregate
                    if workers > 1:
                        wait = (1.25 - pace[worker]) * 32e3 * chance.uniform(0.6, 1.2)
                        span("exchange", "wait", now, now + wait, layer=layer, peer=(worker + 1) % workers)
                        now += wait
                    dense = 0.6 * cost * pace[worker]
                    span("linear", "compute", now, now + dense, layer=layer)
                    now += dense
                    span(f"layer {layer}", "compute", start, now, way=way)
                span(way, "compute", begin, now)
            if workers > 1:
                end = base + 372e3
                span("all reduce", "wait", now, max(end, now + 4e3), bytes=1_468_006)
                now = max(end, now + 4e3)
            span("optimiser", "compute", now, now + 9e3)
            now += 9e3
            span("epoch", "epoch", base, now + 2e3, epoch=epoch)
    return events
