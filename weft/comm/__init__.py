"""Communicator, routes, the exchange and its codecs."""

from weft.comm.channels import Channels, measure_channels
from weft.comm.codec import Codec, bf16, raw
from weft.comm.communicator import (
    BYTE_CLASSES,
    DEFAULT_DEADLINE_SECONDS,
    EPOCH_BYTE_CLASSES,
    Communicator,
)
from weft.comm.exchange import PendingExchange, exchange, start_exchange
from weft.comm.gradients import all_reduce_gradients
from weft.comm.join import open_communicator
from weft.comm.pending import PendingMessages
from weft.comm.process import run_worker
from weft.comm.quantised import MessageLayout, QuantisedCodec
from weft.comm.route import Route, Rows, build_route
from weft.comm.texts import broadcast_text, gather_texts

__all__ = [
    "BYTE_CLASSES",
    "DEFAULT_DEADLINE_SECONDS",
    "EPOCH_BYTE_CLASSES",
    "Channels",
    "Codec",
    "Communicator",
    "MessageLayout",
    "PendingExchange",
    "PendingMessages",
    "QuantisedCodec",
    "Route",
    "Rows",
    "all_reduce_gradients",
    "bf16",
    "broadcast_text",
    "build_route",
    "exchange",
    "gather_texts",
    "measure_channels",
    "open_communicator",
    "raw",
    "run_worker",
    "start_exchange",
]
