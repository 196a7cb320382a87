"""Reducers, schedules, and the view of the graph that layers are written against."""

from weft.aggregate.messages import EdgeRows
from weft.aggregate.noise import Noise, hash_key, hash_uniform
from weft.aggregate.reach import find_reach, order_by, order_for_overlap
from weft.aggregate.replay import rematerialised
from weft.aggregate.topology import MATERIALISED, OVERLAPPED, SEQUENTIAL, Schedule
from weft.aggregate.view import GraphView
from weft.aggregate.wire import CODECS, RAW, Adaptive, Format, Lane, Quantised, format_named

__all__ = [
    "CODECS",
    "MATERIALISED",
    "OVERLAPPED",
    "RAW",
    "SEQUENTIAL",
    "Adaptive",
    "EdgeRows",
    "Format",
    "GraphView",
    "Lane",
    "Noise",
    "Quantised",
    "Schedule",
    "find_reach",
    "format_named",
    "hash_key",
    "hash_uniform",
    "order_by",
    "order_for_overlap",
    "rematerialised",
]
