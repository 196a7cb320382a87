"""Reducers, schedules, and the view of the graph that layers are written against."""

from weft.aggregate.messages import EdgeRows
from weft.aggregate.noise import Noise, hash_key, hash_uniform
from weft.aggregate.reach import find_reach, order_by_depth
from weft.aggregate.replay import rematerialised
from weft.aggregate.topology import MATERIALISED, SEQUENTIAL, Schedule
from weft.aggregate.view import GraphView

__all__ = [
    "MATERIALISED",
    "SEQUENTIAL",
    "EdgeRows",
    "GraphView",
    "Noise",
    "Schedule",
    "find_reach",
    "hash_key",
    "hash_uniform",
    "order_by_depth",
    "rematerialised",
]
