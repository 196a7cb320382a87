"""The metadata of partitions: what was cut, how, how well, and which worker holds which parts.

    PARTS/manifest.json            a PartitionInfo, with the sha256 of every part's manifest
    PARTS/position.npy             int [N], the place of every vertex by global id: all vertices, part after part
    PARTS/part-0000/manifest.json  a PartInfo, which names the partition, so that parts of two partitions do not mix
    PARTS/part-0000/*.npy          the arrays that weft.partitioning.schema declares

A worker needs PARTS/manifest.json and its own part folders; to sample neighbourhoods also PARTS/position.npy, which
workers of one host share, since it stays memory-mapped.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from weft.errors import UserError
from weft.graph.files import MANIFEST, Array, read_manifest
from weft.graph.preparation import Preparation
from weft.graph.types import GraphTypes
from weft.partitioning.quality import PartCounts, Quality
from weft.partitioning.touches import Forecast

AGAIN = "partition again"
Info = TypeVar("Info", bound=BaseModel)


class PartitionInfo(BaseModel):
    """The metadata of a partition folder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    partition_id: str
    graph_name: str
    fingerprint: str
    method: str
    seed: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    class_names: tuple[str, ...] | None = None
    num_relations: int = 0
    relation_names: tuple[str, ...] | None = None
    num_edge_features: int = 0
    preparation: Preparation | None = None  # how the features came out of a file; None: nobody knows
    types: GraphTypes | None = None  # of vertices; None: they are all of one type
    id_column: str | None = None  # what the user's own files call ids
    parts: tuple[PartCounts, ...]
    part_manifests: tuple[str, ...]  # sha256
    forecast: Forecast | None = None  # where minibatches were drawn before the graph was cut

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    @property
    def quality(self) -> Quality:
        return Quality(self.parts)


class PartInfo(BaseModel):
    """The metadata of one part's folder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    partition_id: str
    part: int
    halo_counts: tuple[int, ...]  # one per part
    bfloat16: tuple[str, ...]  # arrays that numpy sees as int16


def part_name(part: int) -> str:
    return f"part-{part:04d}"


def partition_id_of(fingerprint: str, starts: tuple[int, ...], order: Iterable[Array]) -> str:
    """Two partitions have the same id exactly if every vertex of the same graph lies in the same place.

    order: the global ids part after part, int64, in as many pieces as one likes.
    """
    digest = hashlib.sha256(f"{fingerprint} {starts}".encode())
    for piece in order:
        digest.update(np.ascontiguousarray(piece, np.int64).data)
    return digest.hexdigest()


def read_partition(path: Path | str) -> PartitionInfo:
    """The metadata of a partition folder, validated."""
    info = parse_info(PartitionInfo, Path(path), read_manifest(Path(path), "partition"))
    nodes = [part.nodes for part in info.parts]
    if not nodes or min(nodes) < 0 or sum(nodes) != info.num_nodes or len(info.part_manifests) != len(nodes):
        raise UserError(f"{Path(path) / MANIFEST} is damaged (its parts do not make up the graph): {AGAIN}")
    return info


def position_dtype(num_nodes: int) -> Any:
    return np.int32 if num_nodes < 2**31 else np.int64


def parts_of(worker: int, num_workers: int, num_parts: int) -> range:
    """Part p belongs to worker p * W // P: contiguous groups, as even as can be."""
    first = -(-worker * num_parts // num_workers)
    return range(first, -(-(worker + 1) * num_parts // num_workers))


def check_workers(path: Path | str, num_workers: int, num_parts: int) -> None:
    if num_workers > num_parts:
        raise UserError(
            f"{num_workers} workers were asked for but {path} has {num_parts} parts: "
            f"use at most {num_parts} workers or partition again with --parts {num_workers}"
        )


def parse_info(model: type[Info], path: Path, manifest: dict[str, Any]) -> Info:
    try:
        return model.model_validate(manifest)
    except ValidationError as error:
        where = ".".join(str(key) for key in error.errors()[0]["loc"])
        raise UserError(f"{path / MANIFEST} is damaged (at '{where}'): partition again") from None
