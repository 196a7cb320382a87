"""Compares deployments of a run: CPU servers, CPU servers with functions, and GPU servers, each simulated and priced.

Servers are as fast as this machine was measured to be, and functions as fast as a worker of a pool on this machine.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from weft.serverless.invoker import Invoker
from weft.serverless.prices import Cost, Prices, price
from weft.serverless.simulate import FLOAT_BYTES, Graph, Machine, SimulatedEpoch, simulate_epoch, with_gpu
from weft_function.program import Op, Program
from weft_function.task import Request, Response, TaskId, TaskKind

INTERVALS = 64


CALIBRATION_SIZE = 1024  # rows and columns
CALIBRATION_TRIES = 5
CALIBRATION_SECONDS = 60.0  # for a task


@dataclass(frozen=True)
class Deployment:
    label: str
    functions: int  # of each server
    epoch: SimulatedEpoch
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "functions": self.functions,
            **asdict(self.epoch),
            **{f"cost_{name}": value for name, value in self.cost.to_dict().items() if name != "seconds"},
        }


def machine_of(speeds: Mapping[str, float], functions: "Machine | None" = None) -> Machine:
    """A machine with the measured seconds per number read, per multiplication and per byte sent."""
    machine = functions or Machine()
    machine = replace(machine, gather=FLOAT_BYTES / speeds["read"], multiply=1 / speeds["multiply"])
    return replace(machine, link=1 / speeds["byte"]) if speeds["byte"] else machine


def compare_deployments(
    graph: Graph, model: nn.Module, servers: int, machine: Machine, prices: Prices, staleness: int | None = 0
) -> list[Deployment]:
    """CPU servers alone, CPU servers with the number of functions that has the highest value, and GPU servers."""

    def simulated(label: str, machine: Machine, functions: int, server: str) -> Deployment:
        # Without functions there is no latency that staleness could hide.
        bound = staleness if functions else None
        epoch = simulate_epoch(graph, model, servers, functions, machine, bound, INTERVALS)
        # Requests are not charged: leases are few, and are billed for their duration.
        usage = {"function_seconds": epoch.function_seconds, "requests": 0.0}
        return Deployment(label, functions, epoch, price(prices, epoch.seconds, servers, usage, server=server))

    with_functions = [
        simulated("CPU servers and functions", machine, 1 << power, prices.graph_server)
        for power in range(INTERVALS.bit_length())
    ]
    return [
        simulated("CPU servers", machine, 0, prices.graph_server),
        max(with_functions, key=lambda deployment: deployment.cost.value),
        simulated("GPU servers", with_gpu(machine), 0, prices.gpu_server),
    ]


def calibrate(tries: int = CALIBRATION_TRIES) -> Machine:
    """A machine whose functions are as fast as a pool's worker on this machine, which has one thread."""
    from weft.serverless.pool import PoolInvoker

    pool = PoolInvoker(1)
    try:
        small, large = _request(1, 1), _request(CALIBRATION_SIZE, CALIBRATION_SIZE)
        _elapsed(pool, small)
        round_trip = min(_elapsed(pool, small)[0] for _ in range(tries))
        elapsed, computing = min(_elapsed(pool, large) for _ in range(tries))
    finally:
        pool.close()
    num_bytes = sum(tensor.nbytes for tensor in large.tensors.values()) * 2  # of the request and of the response
    multiplications = float(CALIBRATION_SIZE) ** 3
    return replace(
        Machine(),
        function_multiply=multiplications / max(computing, 1e-6),
        function_link=num_bytes / max(elapsed - computing - round_trip, 1e-6),
        round_trip=round_trip,
    )


def _request(rows: int, width: int) -> Request:
    program = Program(("x",), ("y",), (Op("linear", ("x",), "y", ("w",)),))
    weights = {"w": np.ones((width, width), np.float32)}
    task = TaskId("calibration", 1, 0, 0, 0, TaskKind.APPLY_VERTEX)
    return Request(task, "forward", program, width, weights, {"x": np.ones((rows, width), np.float32)})


def _elapsed(pool: Invoker, request: Request) -> tuple[float, float]:
    """Seconds until the response, and seconds of computation."""
    started = time.perf_counter()
    response: Response = pool.submit(request, CALIBRATION_SECONDS).result()
    return time.perf_counter() - started, response.seconds
