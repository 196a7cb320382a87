"""Communicator, routes, the exchange and its codecs."""

from weft.comm.channels import Channels, measure_channels
from weft.comm.codec import Codec, bf16, raw
from weft.comm.communicator import DEFAULT_DEADLINE_SECONDS, KINDS, Communicator, Pending, open_communicator
from weft.comm.exchange import InFlight, exchange, start_exchange
from weft.comm.gradients import all_reduce_gradients
from weft.comm.process import run_worker
from weft.comm.quantised import Layout, QuantisedCodec
from weft.comm.route import Route, Rows, build_route

__all__ = [
    "DEFAULT_DEADLINE_SECONDS",
    "KINDS",
    "Channels",
    "Codec",
    "Communicator",
    "InFlight",
    "Layout",
    "Pending",
    "QuantisedCodec",
    "Route",
    "Rows",
    "all_reduce_gradients",
    "bf16",
    "build_route",
    "exchange",
    "measure_channels",
    "open_communicator",
    "raw",
    "run_worker",
    "start_exchange",
]
