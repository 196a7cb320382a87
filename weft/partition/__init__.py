"""Who owns which vertex: methods, shards, files, quality."""

from weft.partition.quality import PartCounts, Quality, quality
from weft.partition.shard import Shard, make_shards, whole_shard
from weft.partition.store import (
    PartitionInfo,
    check_partition_of,
    load_original_ids,
    load_shard,
    read_owner,
    read_partition,
    write_partition,
)

__all__ = [
    "PartCounts",
    "PartitionInfo",
    "Quality",
    "Shard",
    "check_partition_of",
    "load_original_ids",
    "load_shard",
    "make_shards",
    "quality",
    "read_owner",
    "read_partition",
    "whole_shard",
    "write_partition",
]
