"""What makes a run the same run: its graph, and the settings that its numbers depend on.

Both are written into every checkpoint. A run cannot resume a checkpoint of another graph, or with a different setting
that changes what is learned; settings of how the work is done, by how many workers, or for how long may change.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.vertexdata import SPLITS, VERTEX_DATA, rows_in
from weft.kernels.hash import splitmix64
from weft.partitioning import Shard

BLOCK_NUMBERS = 1 << 22  # rows are read so many numbers at a time
NAMED = 3  # settings that an error names

# Sections and keys that may differ between a checkpoint and the run that goes on from it.
FREE_SECTIONS = ("partition", "memory", "track")
FREE = {
    "": ("data", "run", "strategy", "workers", "threads", "device", "deadline_seconds"),
    "train": ("epochs", "eval_every", "patience", "checkpoint_every", "trace_epochs", "cache_input"),
    "exchange": ("schedule", "blocks", "prefetch", "keep_packed"),
    "sample": ("macrobatch", "memory_mib", "hot_mib", "overlap"),
}
FIXED_OF_EXECUTOR = ("staleness", "plateau", "wire")


def describe_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config (its plain values) that what is learned depends on, by dotted name."""
    sections: dict[str, Mapping[str, Any]] = {"": {}}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            sections[name] = value
        else:
            sections[""] = {**sections[""], name: value}
    for name in FREE_SECTIONS:
        sections.pop(name, None)
    executor = sections.get("executor", {})
    sections["executor"] = {name: executor[name] for name in FIXED_OF_EXECUTOR if name in executor}
    for section, task in (("link", "links"), ("edge", "edges")):
        if sections.get("train", {}).get("task") != task:
            sections.pop(section, None)
    if sections.get("exchange", {}).get("plan", "full") == "full":
        sections.pop("sample", None)
    return {
        f"{section}.{key}" if section else key: value
        for section, values in sections.items()
        for key, value in values.items()
        if key not in FREE.get(section, ())
    }


def refuse_other_settings(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Both as `describe_settings` gives them. A setting that only one of them has is of another version of weft."""
    other = [name for name, value in before.items() if name in now and now[name] != value]
    if other:
        then = ", ".join(f"{name}={before[name]}" for name in other[:NAMED])
        here = ", ".join(f"{name}={now[name]}" for name in other[:NAMED])
        raise UserError(
            f"{where} was written by a run with {then}, and this one has {here}: go on with the settings that it "
            "began with, or train under another --run"
        )


def describe_graph(shard: Shard, comm: Communicator) -> dict[str, Any]:
    """A description of the whole graph, equal for any number of workers and any partition. A collective call.

    Edges by their fingerprint; features, labels, splits, times and other vertex data by sums of hashes of rows and
    global ids.
    """
    masks = [shard.masks.get(split) for split in SPLITS]
    rows = {"features": [shard.x], "labels": [shard.y]}
    rows["splits"] = [mask if mask is None or mask.dim() == 1 else mask.T for mask in masks]
    if shard.time is not None:
        rows["times"] = [shard.time]
    rows |= {name: [column] for name, column in shard.vertex_data.items() if name not in VERTEX_DATA}
    sums = torch.stack(
        [
            sum((_sum_of_hashes(part, _ids(shard, name), place) for place, part in enumerate(parts)), torch.tensor(0))
            for name, parts in rows.items()
        ]
    )
    comm.all_reduce(sums, "control", "hashes of rows")
    return {
        "name": shard.graph_name,
        "fingerprint": shard.fingerprint,
        "vertices": shard.num_global_nodes,
        "edges": shard.num_global_edges,
        **{name: f"{value & 0xFFFFFFFFFFFFFFFF:016x}" for name, value in zip(rows, sums.tolist(), strict=True)},
    }


def _ids(shard: Shard, column: str) -> Tensor:
    """Global ids of the vertices that a column has rows of."""
    members = rows_in(shard.vertex_data, column)
    return shard.global_ids if members is None else shard.global_ids[members]


def refuse_other_graph(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Both as `describe_graph` gives them."""
    keys = [key for key in dict.fromkeys([*before, *now]) if key not in ("name", "edges")]
    other = ["edges" if key == "fingerprint" else key for key in keys if before.get(key) != now.get(key)]
    if other:
        raise UserError(
            f"{where} is of another graph than {now['name']} is now (its {' and '.join(other[:2])} differ): give it "
            "the graph that the run began with, or train under another --run"
        )


def _sum_of_hashes(rows: Tensor | None, ids: Tensor, place: int) -> Tensor:
    """The sum, wrapping, of a hash of each row [N, ...] and its global id; the order of rows does not matter."""
    total = torch.zeros((), dtype=torch.int64)
    if rows is None:
        return total
    flat = rows.reshape(len(rows), -1)
    if not flat.numel():
        return total
    row_bytes = flat.shape[1] * flat.element_size()
    kind = torch.int32 if row_bytes % 4 == 0 else torch.uint8
    keys = splitmix64(torch.arange(1, row_bytes + 1) + (place << 32))
    step = max(1, BLOCK_NUMBERS // row_bytes)
    for start in range(0, len(flat), step):
        words = flat[start : start + step].contiguous().view(torch.uint8).view(kind).long()
        hashes = words.mul_(keys[: words.shape[1]]).sum(1)
        total += splitmix64(hashes ^ splitmix64(ids[start : start + step])).sum()
    return total
