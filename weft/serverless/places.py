"""Where a run's products could be done, what an epoch would take there, and what it would cost: modelled, and priced.

Servers are as fast as this machine was measured to be, functions as fast as a worker of a pool here.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from weft.serverless.prices import Cost, Prices, price
from weft.serverless.simulate import NUMBER, Graph, Machine, Played, on_gpus, play
from weft_function.program import Op, Program
from weft_function.request import Kind, Request, TaskId

INTERVALS = 64


@dataclass(frozen=True)
class Place:
    label: str
    functions: int  # of each server
    played: Played
    cost: Cost

    def described(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "functions": self.functions,
            **asdict(self.played),
            **{f"cost_{name}": value for name, value in self.cost.described().items() if name != "seconds"},
        }


def machine_of(speeds: Mapping[str, float], functions: "Machine | None" = None) -> Machine:
    """A server as fast as what plans were weighed with."""
    machine = functions or Machine()
    machine = replace(machine, gather=NUMBER / speeds["read"], multiply=1 / speeds["multiply"])
    return replace(machine, link=1 / speeds["byte"]) if speeds["byte"] else machine


def compare(
    graph: Graph, model: nn.Module, servers: int, machine: Machine, prices: Prices, staleness: int | None = 0
) -> list[Place]:
    """CPU servers alone, with as many functions as give most value, and servers with GPUs, for the same run."""

    def placed(label: str, machine: Machine, functions: int, server: str) -> Place:
        # Without functions nothing is waited for, so there is nothing that staleness could hide.
        played = play(graph, model, servers, functions, machine, staleness if functions else None, INTERVALS)
        return Place(label, functions, played, _priced(prices, played, servers, server))

    with_functions = [
        placed("CPU servers and functions", machine, 1 << power, prices.graph_server)
        for power in range(INTERVALS.bit_length())
    ]
    return [
        placed("CPU servers", machine, 0, prices.graph_server),
        max(with_functions, key=lambda place: place.cost.value),
        placed("GPU servers", on_gpus(machine), 0, prices.gpu_server),
    ]


def _priced(prices: Prices, played: Played, servers: int, server: str) -> Cost:
    # Leases are few, and are billed for as long as they last.
    used = {"function_seconds": played.function_seconds, "requests": 0.0}
    return price(prices, played.seconds, servers, used, server=server)


def calibrate(tries: int = 5) -> Machine:
    """How fast a function is: a worker of a pool on this machine, with one thread."""
    from weft.serverless.pool import PoolInvoker

    pool = PoolInvoker(1)
    try:
        small, large = _request(1, 1), _request(1024, 1024)
        _elapsed(pool, small)
        trip = min(_elapsed(pool, small)[0] for _ in range(tries))
        took, worked = min(_elapsed(pool, large) for _ in range(tries))
    finally:
        pool.close()
    moved = sum(tensor.nbytes for tensor in large.tensors.values()) * 2  # there and back
    products = 1024.0**3
    return replace(
        Machine(),
        function_multiply=products / max(worked, 1e-6),
        function_link=moved / max(took - worked - trip, 1e-6),
        round_trip=trip,
    )


def _request(rows: int, width: int) -> Request:
    program = Program(("x",), ("y",), (Op("linear", ("x",), "y", ("w",)),))
    weights = {"w": np.ones((width, width), np.float32)}
    task = TaskId("calibration", 1, 0, 0, 0, Kind.APPLY_VERTEX)
    return Request(task, "forward", program, width, weights, {"x": np.ones((rows, width), np.float32)})


def _elapsed(pool: Any, request: Request) -> tuple[float, float]:
    started = time.perf_counter()
    answer = pool.submit(request, 60.0).result()
    return time.perf_counter() - started, answer.seconds
