"""Simulates a run with thousands of functions on a virtual clock: the time of an epoch, and the usage that is priced.

One graph server is simulated, and the others are assumed to be like it. The order of steps is that of a real run, from
the same `Pipeline`. Durations are modelled: gathering reads at the bandwidth of memory, the rows of other servers and
the tensors of tasks share the server's link, and a function computes at the speed of one processor behind its own link,
after a cold start in its first task. The result is a model, and is labelled as one wherever it is shown.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from weft.layers import ModelConfig, build_model
from weft.serverless.pipeline import IntervalId, Pipeline, Step, epoch_steps
from weft.serverless.schedule import Schedule
from weft.serverless.stages import Stage, compile_stages
from weft_function.program import Program
from weft_function.task import TENSOR_KINDS, TaskKind

FLOAT_BYTES = 4
EPOCHS, WARM_UP = 6, 2  # simulated epochs, and how many of them are not counted
GPU_GATHER, GPU_MULTIPLY = 300e9, 5e12  # per second
BACKWARD_WORK = 2.0  # multiplications of a backward pass, in those of a forward pass


@dataclass(frozen=True)
class Graph:
    """The size of a graph, and of its partition."""

    name: str
    vertices: float
    edges: float  # directed
    features: int
    classes: int
    remote: float = 0.5  # rows of a server that others read, in its vertices; a row counts once per reader


@dataclass(frozen=True)
class Machine:
    """The speed of servers and functions, in bytes and multiplications per second."""

    gather: float = 8e9  # bytes read by a server
    multiply: float = 150e9  # by a server
    link: float = 1.25e9  # bytes over a server's link, in each direction
    function_multiply: float = 20e9
    function_link: float = 75e6  # bytes over a function's link
    round_trip: float = 0.002  # seconds of a task without data and work
    cold_start: float = 0.5  # seconds before a function's first task
    starts_per_second: float = 500.0  # of functions by the cloud
    failures: float = 0.0  # share of tasks that are lost, and repeated `lost_after` seconds later
    lost_after: float = 5.0


@dataclass(frozen=True)
class SimulatedEpoch:
    """An epoch of the whole run in the steady state."""

    seconds: float
    function_seconds: float  # of the leases of all functions
    task_seconds: float  # of computation and transfers in functions
    requests: float  # if every task were an invocation
    tasks: float
    bytes: float  # between servers and functions
    gathered: float  # bytes read by gathering


@dataclass(frozen=True)
class Work:
    """The work of one tensor task."""

    multiplications: float
    request_bytes: float
    response_bytes: float


def simulate_epoch(
    graph: Graph,
    model: nn.Module,
    servers: int,
    functions: int,
    machine: Machine,
    staleness: int | None = 0,
    intervals: int = 64,
) -> SimulatedEpoch:
    """`functions`: of each server; 0: servers compute the products themselves."""
    stages = compile_stages(model)
    return _Simulation(graph, model, stages, servers, functions, machine, staleness, intervals).run()


class _Simulation:
    def __init__(
        self,
        graph: Graph,
        model: nn.Module,
        stages: tuple[Stage, ...],
        servers: int,
        functions: int,
        machine: Machine,
        staleness: int | None,
        intervals: int,
    ) -> None:
        self._graph, self._stages, self._machine = graph, stages, machine
        self._servers, self._functions, self._intervals = servers, functions, intervals
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self._rows = graph.vertices / servers / intervals
        self._edges = graph.edges / servers / intervals
        all_intervals = [IntervalId(0, interval) for interval in range(intervals)]
        edge_stages = [n for n, stage in enumerate(stages) if stage.gathering and stage.gathering.edge is not None]
        steps = epoch_steps(len(stages), edge_stages)
        reads = [all_intervals] * intervals
        schedule = Schedule(staleness, intervals, watches_loss=False)
        self._pipeline = Pipeline(0, steps, schedule, EPOCHS, reads, reads)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._processor = self._uplink = self._downlink = (
            0.0  # when processors and the two directions of the link are free
        )
        self._idle: list[float] = [index / machine.starts_per_second for index in range(functions)]  # since when
        self._num_cold = functions
        self._queue: list[tuple[int, int, Step]] = []
        self._num_finished: dict[int, int] = {}
        self._update_times: list[float] = []
        self._task_seconds = self._tasks = self._bytes = self._gathered = 0.0

    def run(self) -> SimulatedEpoch:
        self._start_steps()
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()
            self._start_steps()
        counted = EPOCHS - WARM_UP
        seconds = (self._update_times[-1] - self._update_times[WARM_UP - 1]) / counted
        each = self._servers / EPOCHS
        return SimulatedEpoch(
            seconds,
            function_seconds=self._functions * self._servers * seconds,
            task_seconds=self._task_seconds * each,
            requests=self._tasks * each if self._functions else 0.0,
            tasks=self._tasks * each,
            bytes=self._bytes * each,
            gathered=self._gathered * each,
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def _start_steps(self) -> None:
        self._send_queued()
        while started := self._pipeline.ready():
            for interval, epoch, step in started:
                if step.kind in TENSOR_KINDS and self._functions:
                    self._queue.append((interval, epoch, step))
                else:
                    self._run_on_server(interval, epoch, step)
            self._send_queued()

    def _send_queued(self) -> None:
        while self._queue and self._idle:
            self._run_in_function(*self._queue.pop(0))

    def _run_on_server(self, interval: int, epoch: int, step: Step) -> None:
        """Runs a step on the server's processors, which run one at a time, or sends rows over its link."""
        machine = self._machine
        if step.kind in TENSOR_KINDS:
            self._tasks += 1
            seconds = self._work(step).multiplications / machine.multiply
            self._processor = max(self._now, self._processor) + seconds
            self._at(self._processor, lambda: self._finish(interval, epoch, step))
            return
        gathering = self._stages[step.stage + (step.kind is TaskKind.SCATTER)].gathering
        assert gathering is not None
        if step.kind in (TaskKind.SCATTER, TaskKind.SCATTER_BACK):
            width = gathering.forward_width if step.kind is TaskKind.SCATTER else gathering.backward_width
            sent = self._rows * self._graph.remote * width * FLOAT_BYTES if self._servers > 1 else 0.0
            self._uplink = max(self._now, self._uplink) + sent / machine.link
            self._at(self._uplink, lambda: self._finish_scatter(interval, epoch, step))
            return
        read = self._edges * gathering.width * FLOAT_BYTES
        self._gathered += read
        self._processor = max(self._now, self._processor) + read / machine.gather
        self._at(self._processor, lambda: self._finish(interval, epoch, step))

    def _run_in_function(self, interval: int, epoch: int, step: Step) -> None:
        """Runs a task in a function: sends the request, computes, sends the response."""
        machine, work = self._machine, self._work(step)
        begin = max(self._now, heapq.heappop(self._idle))
        if self._num_cold:
            self._num_cold -= 1
            begin += machine.cold_start
        self._uplink = max(self._now, self._uplink) + work.request_bytes / machine.link
        arrived = max(begin, self._uplink) + work.request_bytes / machine.function_link + machine.round_trip
        done = arrived + work.multiplications / machine.function_multiply + work.response_bytes / machine.function_link
        self._downlink = (
            max(self._downlink, done - work.response_bytes / machine.link) + work.response_bytes / machine.link
        )
        received = max(done, self._downlink)
        self._tasks += 1
        if machine.failures and _uniform(interval, epoch, step) < machine.failures:
            received += machine.lost_after
            self._tasks += 1
        self._task_seconds += received - begin
        self._bytes += work.request_bytes + work.response_bytes

        def receive() -> None:
            heapq.heappush(self._idle, self._now)
            self._finish(interval, epoch, step)

        self._at(received, receive)

    def _finish_scatter(self, interval: int, epoch: int, step: Step) -> None:
        self._pipeline.record_write(step.kind, step.stage, IntervalId(0, interval), epoch)
        self._finish(interval, epoch, step)

    def _finish(self, interval: int, epoch: int, step: Step) -> None:
        if not self._pipeline.finish(interval):
            return
        self._num_finished[epoch] = self._num_finished.get(epoch, 0) + 1
        if self._num_finished[epoch] == self._intervals:
            weights = sum(math.prod(shape) for shape in self._shapes.values()) * FLOAT_BYTES
            exchange = 2 * weights / self._machine.link if self._servers > 1 else 0.0
            self._at(self._now + exchange, lambda: self._finish_update(epoch))

    def _finish_update(self, epoch: int) -> None:
        self._update_times.append(self._now)
        self._pipeline.record_update(epoch)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _work(self, step: Step) -> Work:
        stage = self._stages[step.stage]
        if step.kind in (TaskKind.APPLY_EDGE, TaskKind.APPLY_EDGE_BACK):
            assert stage.gathering is not None
            terms = stage.gathering.terms or stage.gathering.width
            back = step.kind is TaskKind.APPLY_EDGE_BACK
            edges = self._edges * (2 if back else 1)
            sent = edges * FLOAT_BYTES * (2 * terms + (3 * stage.gathering.heads if back else 0))
            returned = edges * FLOAT_BYTES * (stage.gathering.heads + (2 * terms if back else 0))
            return Work(0.0, sent, returned)
        last = step.stage == len(self._stages) - 1
        times = 1.0 + BACKWARD_WORK if last or step.kind is TaskKind.APPLY_VERTEX_BACK else 1.0
        widths = self._widths(step.stage)
        rows = self._rows * FLOAT_BYTES
        read = sum(widths[name] for name in stage.program.inputs) * rows
        written = sum(widths[name] for name in stage.program.outputs if name != "loss") * rows
        forward = self._rows * self._products(stage.program)
        if last:
            return Work(times * forward, read, read)
        if step.kind is TaskKind.APPLY_VERTEX:
            return Work(forward, read, written)
        differentiated = [name for name in stage.program.inputs if name not in stage.program.constants]
        return Work(times * forward, read + written, sum(widths[name] for name in differentiated) * rows)

    def _products(self, program: Program) -> float:
        """Multiplications per row of a forward pass."""
        return float(sum(math.prod(self._shapes[op.weights[0]]) for op in program.ops if op.name == "linear"))

    def _widths(self, number: int) -> Mapping[str, int]:
        """The number of columns of each value in a stage."""
        stage = self._stages[number]
        widths = {"x": self._graph.features, "ids": 2, "targets": 2, "counts": 1, "gathered": self._graph.features}
        if stage.gathering is not None:
            widths["gathered"] = stage.gathering.width
            widths["carried"] = self._widths(number - 1).get("carry", 0)
        for op in stage.program.ops:
            if op.name == "linear" or op.name == "head_dot":
                widths[op.output] = self._shapes[op.weights[0]][0]
            elif op.name == "head_mean":
                widths[op.output] = widths[op.inputs[0]] // int(dict(op.settings)["heads"])
            else:
                widths[op.output] = widths[op.inputs[0]]
        return widths


def _uniform(interval: int, epoch: int, step: Step) -> float:
    """A reproducible pseudo-random number in [0, 1)."""
    text = f"{interval} {epoch} {step.kind} {step.stage}"
    value = 0
    for letter in text.encode():
        value = (value * 1_000_003 + letter) & 0xFFFFFFFF
    return (value * 2_654_435_761 & 0xFFFFFFFF) / 2**32


def gcn(graph: Graph, hidden: int, layers: int = 2) -> nn.Module:
    return build_model(ModelConfig(name="gcn", layers=layers, hidden=hidden), graph.features, graph.classes)


def with_gpu(machine: Machine) -> Machine:
    """A server with a GPU of the V100 class, and the same link."""
    return replace(machine, gather=GPU_GATHER, multiply=GPU_MULTIPLY)
