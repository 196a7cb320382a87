"""summary.json: what a run came to, counted over all workers."""

import hashlib
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import EPOCH_BYTE_CLASSES
from weft.partitioning import PartitionInfo
from weft.training.loop import Outcome
from weft.training.machine import describe_machine, peak_gpu_bytes, peak_rss_bytes


def summarise(
    settings: Mapping[str, Any],
    graph: DistributedGraph,
    model: nn.Module,
    outcome: Outcome,
    seconds: float,
    parts: PartitionInfo | None,
) -> dict[str, Any]:
    """What came out, what it cost, on which machine; all workers call it together.

    settings: those of the run that the summary names. parts: None where one worker has opened the graph whole.
    """
    comm, shard = graph.comm, graph.shard
    peaks = comm.all_gather(torch.tensor([peak_rss_bytes(), peak_gpu_bytes(comm.device)]), "control", "peak memory")
    peak_rss, peak_gpu = peaks.view(-1, 2).t().tolist()
    rows = _row_counts(graph, outcome)
    times = sorted(record["seconds"] for record in outcome.records) or [0.0]
    per_class = {kind: _median(record["wire_bytes"][kind] for record in outcome.records) for kind in EPOCH_BYTE_CLASSES}
    once = torch.tensor([comm.sent[kind] for kind in EPOCH_BYTE_CLASSES])
    comm.all_reduce(once, "control", "bytes")
    phases = {name: _median(r["phase_seconds"].get(name, 0.0) for r in outcome.records) for name in _phases(outcome)}
    return {
        "status": outcome.status,
        **settings,
        "workers": comm.num_workers,
        "epochs": outcome.progress.epoch,
        "metric": outcome.metric,
        "train_loss": outcome.progress.train_loss,
        **{f"{split}_{outcome.metric}": value for split, value in outcome.values.items()},
        "best_epoch": outcome.progress.best_epoch,
        "epoch_seconds": {
            "median": statistics.median(times),
            "p90": times[min(len(times) - 1, int(0.9 * len(times)))],
            "total": sum(times),
        },
        "assign_seconds": sum(record["phase_seconds"].get("assign", 0.0) for record in outcome.records),
        "total_seconds": seconds,
        "phase_seconds": phases,
        "wire_bytes": {
            "per_epoch": sum(per_class.values()),
            **per_class,
            "whole_run": dict(zip(EPOCH_BYTE_CLASSES, once.tolist(), strict=True)),
        },
        "rows": rows,
        "cost": _cost(outcome),
        "minibatches": None if outcome.loader is None else outcome.loader.described(),
        "peak_rss_bytes": peak_rss,
        **({"peak_gpu_bytes": peak_gpu} if any(peak_gpu) else {}),
        "weights_sha256": weights_digest(outcome.last_weights),
        "best_weights_sha256": weights_digest(model.state_dict()),
        "graph": {
            "name": shard.graph_name,
            "num_nodes": shard.num_global_nodes,
            "num_edges": shard.num_global_edges,
            "num_features": shard.num_features,
            "num_classes": shard.num_classes,
            "fingerprint": shard.fingerprint,
        },
        "partition": None if parts is None else _partition_facts(parts),
        "machine": describe_machine(),
    }


def _row_counts(graph: DistributedGraph, outcome: Outcome) -> dict[str, int]:
    """Rows that an epoch's steps want, over all workers: without minibatches, those of the halo."""
    halo = graph.shard.num_halo
    mine = torch.tensor([halo, halo, halo, 0])
    if outcome.loader is not None:
        counts = outcome.loader.counts
        epochs = max(len(outcome.records), 1)
        mine = torch.tensor([counts.requested, counts.unique, counts.remote, counts.cached]) // epochs
    graph.comm.all_reduce(mine, "control", "rows")
    return dict(zip(("requested", "unique", "remote", "cached"), mine.tolist(), strict=True))


def _phases(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(name for record in outcome.records for name in record["phase_seconds"]))


def _median(values: Any) -> Any:
    values = list(values)
    return statistics.median(values) if values else 0


def _partition_facts(info: PartitionInfo) -> dict[str, Any]:
    quality = info.quality
    return {
        "method": info.method,
        "parts": info.num_parts,
        "cut_fraction": quality.cut_fraction,
        "halo_rows": quality.halo,
        "vertex_balance": quality.vertex_balance,
        "edge_balance": quality.edge_balance,
        "train_balance": quality.train_balance,
    }


def weights_digest(weights: dict[str, Tensor]) -> str:
    """sha256 over names and bytes of the weights that every worker holds alike."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        if name != "embedding":
            digest.update(name.encode())
            digest.update(weights[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _cost(outcome: Outcome) -> dict[str, float] | None:
    """What all epochs cost together, and an epoch's median value; None where products are not done elsewhere."""
    records = [record["cost"] for record in outcome.records if "cost" in record]
    if not records:
        return None
    parts = [name for name in records[0] if name != "value"]
    totals = {name: sum(record[name] for record in records) for name in parts}
    return totals | {"value": statistics.median(record["value"] for record in records)}
