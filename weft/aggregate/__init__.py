"""Reducers, schedules, and the view of the graph that layers are written against."""

from weft.aggregate.adaptive import Adaptive
from weft.aggregate.codecs import CodecOptions, codec_names, format_named, register_codec
from weft.aggregate.constant import Nonzeros
from weft.aggregate.distributed import DistributedGraph
from weft.aggregate.messages import EdgeRows
from weft.aggregate.noise import Noise
from weft.aggregate.quantised import MessageSet, Quantised
from weft.aggregate.reach import find_reach, order_by, order_for_overlap
from weft.aggregate.replay import rematerialised
from weft.aggregate.rounds import MATERIALISED, OVERLAPPED, SEQUENTIAL, Schedule
from weft.aggregate.view import GraphView
from weft.aggregate.wire import RAW, Format, FormatTraits, PlainFormat

__all__ = [
    "MATERIALISED",
    "OVERLAPPED",
    "RAW",
    "SEQUENTIAL",
    "Adaptive",
    "CodecOptions",
    "DistributedGraph",
    "EdgeRows",
    "Format",
    "FormatTraits",
    "GraphView",
    "MessageSet",
    "Noise",
    "Nonzeros",
    "PlainFormat",
    "Quantised",
    "Schedule",
    "codec_names",
    "find_reach",
    "format_named",
    "order_by",
    "order_for_overlap",
    "register_codec",
    "rematerialised",
]
