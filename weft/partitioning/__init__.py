"""Who owns which vertex: methods, shards, files, quality."""

from weft.partitioning.info import PartitionInfo, read_partition
from weft.partitioning.partitioners import (
    Assignment,
    Balance,
    Request,
    Requires,
    assign,
    describe_partitioners,
    find_partitioner,
    list_partitioners,
    register_partitioner,
)
from weft.partitioning.presample import presample_owner
from weft.partitioning.quality import PartCounts, Quality, quality
from weft.partitioning.read import load_original_ids, load_shard, read_owner, read_positions
from weft.partitioning.shard import Shard, make_shards, whole_shard
from weft.partitioning.touches import Forecast, Touches, Traffic, traffic
from weft.partitioning.write import write_partition

__all__ = [
    "Assignment",
    "Balance",
    "Forecast",
    "PartCounts",
    "PartitionInfo",
    "Quality",
    "Request",
    "Requires",
    "Shard",
    "Touches",
    "Traffic",
    "assign",
    "describe_partitioners",
    "find_partitioner",
    "list_partitioners",
    "load_original_ids",
    "load_shard",
    "make_shards",
    "presample_owner",
    "quality",
    "read_owner",
    "read_partition",
    "read_positions",
    "register_partitioner",
    "traffic",
    "whole_shard",
    "write_partition",
]
