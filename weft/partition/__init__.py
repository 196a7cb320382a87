"""Who owns which vertex: methods, shards, files, quality."""

from weft.partition.methods import METHODS, Balance, assign, choose_method
from weft.partition.presample import Forecast, Touches, Traffic, presample_owner, traffic
from weft.partition.quality import PartCounts, Quality, quality
from weft.partition.shard import Shard, make_shards, whole_shard
from weft.partition.store import (
    PartitionInfo,
    load_original_ids,
    load_shard,
    read_owner,
    read_partition,
    read_positions,
    write_partition,
)

__all__ = [
    "METHODS",
    "Balance",
    "Forecast",
    "PartCounts",
    "PartitionInfo",
    "Quality",
    "Shard",
    "Touches",
    "Traffic",
    "assign",
    "choose_method",
    "load_original_ids",
    "load_shard",
    "make_shards",
    "presample_owner",
    "quality",
    "read_owner",
    "read_partition",
    "read_positions",
    "traffic",
    "whole_shard",
    "write_partition",
]
