"""A run with thousands of functions, on a virtual clock: what an epoch would take, and what it would cost.

One graph server is played out; the others are taken to be like it. The order of steps is that of a run (the same
`Pipeline`); what takes time is modelled: gathering reads bytes at the speed of memory, rows of other servers and tasks
share the server's link, a function computes at the speed of one processor behind a link of its own, and starts cold the
first time. What comes out is a model, whatever it was calibrated on, and is called one wherever it is shown.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from weft.layers import ModelConfig, build_model
from weft.serverless.pipeline import Bound, Pipeline, Spot, Step, epoch_steps
from weft.serverless.programs import Stage, compile_stages
from weft_function.program import Program
from weft_function.request import TENSOR_KINDS, Kind

NUMBER = 4  # bytes
EPOCHS, WARM_UP = 6, 2  # played, of which the first are not counted


@dataclass(frozen=True)
class Graph:
    """A graph's shape, and how it is cut."""

    name: str
    vertices: float
    edges: float  # directed
    features: int
    classes: int
    remote: float = 0.5  # share of a server's vertices that other servers read, times how many of them do


@dataclass(frozen=True)
class Machine:
    """What a server and a function do in a second. Bytes and multiplications."""

    gather: float = 8e9  # bytes that a server's gatherings read
    multiply: float = 150e9  # a server's multiplications
    link: float = 1.25e9  # bytes of a server's link, each way
    function_multiply: float = 20e9
    function_link: float = 75e6  # bytes of a function's link
    round_trip: float = 0.002  # seconds of a task beside its bytes and its work
    cold_start: float = 0.5  # seconds until a function that was not there does its first task
    starts_a_second: float = 500.0  # functions that the cloud starts
    failures: float = 0.0  # share of tasks that are lost, and done again after `lost_after`
    lost_after: float = 5.0


@dataclass(frozen=True)
class Played:
    """An epoch of the whole run, in the steady state."""

    seconds: float
    function_seconds: float  # of leases: from their begin to their end, all functions
    task_seconds: float  # that functions worked or waited for bytes
    requests: float  # were every task an invocation of its own
    tasks: float
    bytes: float  # between servers and functions
    gathered: float  # bytes


@dataclass(frozen=True)
class Work:
    """A tensor task of one interval."""

    multiplications: float
    sent: float  # bytes
    returned: float


def play(
    graph: Graph,
    model: nn.Module,
    servers: int,
    functions: int,
    machine: Machine,
    staleness: int | None = 0,
    intervals: int = 64,
) -> Played:
    """`functions`: of each server; 0: the server does the products itself."""
    stages = compile_stages(model)
    return _Play(graph, model, stages, servers, functions, machine, staleness, intervals).run()


class _Play:
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
        everyone = [Spot(0, interval) for interval in range(intervals)]
        edge_stages = [n for n, stage in enumerate(stages) if stage.gathering and stage.gathering.edge is not None]
        steps = epoch_steps(len(stages), edge_stages)
        reads = [everyone] * intervals
        self._pipeline = Pipeline(0, steps, Bound(staleness), EPOCHS, reads, reads)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._processor = self._out = self._in = 0.0  # when each is free
        self._idle: list[float] = [index / machine.starts_a_second for index in range(functions)]  # when each was free
        self._cold = functions
        self._queue: list[tuple[int, int, Step]] = []
        self._ended: dict[int, int] = {}
        self._marks: list[float] = []
        self._task_seconds = self._tasks = self._bytes = self._gathered = 0.0

    def run(self) -> Played:
        self._start()
        while self._events:
            self._now, _, then = heapq.heappop(self._events)
            then()
            self._start()
        counted = EPOCHS - WARM_UP
        seconds = (self._marks[-1] - self._marks[WARM_UP - 1]) / counted
        each = self._servers / EPOCHS
        return Played(
            seconds,
            function_seconds=self._functions * self._servers * seconds,
            task_seconds=self._task_seconds * each,
            requests=self._tasks * each if self._functions else 0.0,
            tasks=self._tasks * each,
            bytes=self._bytes * each,
            gathered=self._gathered * each,
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def _at(self, when: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, then))

    def _start(self) -> None:
        self._send()
        while begun := self._pipeline.ready(ahead=0) or self._pipeline.ready(self._unoccupied()):
            for interval, epoch, step in begun:
                if step.kind in TENSOR_KINDS and self._functions:
                    self._queue.append((interval, epoch, step))
                else:
                    self._here(interval, epoch, step)
            self._send()

    def _send(self) -> None:
        while self._queue and self._idle:
            self._there(*self._queue.pop(0))

    def _unoccupied(self) -> int:
        """How many tasks more somebody could work on, as a server sees it."""
        if self._queue:
            return 0
        return len(self._idle) if self._functions else int(self._processor <= self._now)

    def _here(self, interval: int, epoch: int, step: Step) -> None:
        """On the server's own processors, one step after another; rows for others leave by its link."""
        machine = self._machine
        if step.kind in TENSOR_KINDS:
            self._tasks += 1
            seconds = self._work(step).multiplications / machine.multiply
            self._processor = max(self._now, self._processor) + seconds
            self._at(self._processor, lambda: self._finish(interval, epoch, step))
            return
        how = self._stages[step.stage + (step.kind is Kind.SCATTER)].gathering
        assert how is not None
        if step.kind in (Kind.SCATTER, Kind.SCATTER_BACK):
            width = how.sent_width if step.kind is Kind.SCATTER else how.returned_width
            away = self._rows * self._graph.remote * width * NUMBER if self._servers > 1 else 0.0
            self._out = max(self._now, self._out) + away / machine.link
            self._at(self._out, lambda: self._wrote(interval, epoch, step))
            return
        read = self._edges * how.width * NUMBER
        self._gathered += read
        self._processor = max(self._now, self._processor) + read / machine.gather
        self._at(self._processor, lambda: self._finish(interval, epoch, step))

    def _there(self, interval: int, epoch: int, step: Step) -> None:
        """By a function: bytes there, work, bytes back."""
        machine, work = self._machine, self._work(step)
        begin = max(self._now, heapq.heappop(self._idle))
        if self._cold:
            self._cold -= 1
            begin += machine.cold_start
        self._out = max(self._now, self._out) + work.sent / machine.link
        arrived = max(begin, self._out) + work.sent / machine.function_link + machine.round_trip
        done = arrived + work.multiplications / machine.function_multiply + work.returned / machine.function_link
        self._in = max(self._in, done - work.returned / machine.link) + work.returned / machine.link
        back = max(done, self._in)
        self._tasks += 1
        if machine.failures and _draw(interval, epoch, step) < machine.failures:
            back += machine.lost_after
            self._tasks += 1
        self._task_seconds += back - begin
        self._bytes += work.sent + work.returned

        def landed() -> None:
            heapq.heappush(self._idle, self._now)
            self._finish(interval, epoch, step)

        self._at(back, landed)

    def _wrote(self, interval: int, epoch: int, step: Step) -> None:
        self._pipeline.wrote(step.kind, step.stage, Spot(0, interval), epoch)
        self._finish(interval, epoch, step)

    def _finish(self, interval: int, epoch: int, step: Step) -> None:
        if not self._pipeline.finish(interval):
            return
        self._ended[epoch] = self._ended.get(epoch, 0) + 1
        if self._ended[epoch] == self._intervals:
            weights = sum(math.prod(shape) for shape in self._shapes.values()) * NUMBER
            exchange = 2 * weights / self._machine.link if self._servers > 1 else 0.0
            self._at(self._now + exchange, lambda: self._updated(epoch))

    def _updated(self, epoch: int) -> None:
        self._marks.append(self._now)
        self._pipeline.updated(epoch)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _work(self, step: Step) -> Work:
        stage = self._stages[step.stage]
        if step.kind in (Kind.APPLY_EDGE, Kind.APPLY_EDGE_BACK):
            assert stage.gathering is not None
            terms = stage.gathering.terms or stage.gathering.width
            back = step.kind is Kind.APPLY_EDGE_BACK
            edges = self._edges * (2 if back else 1)
            sent = edges * NUMBER * (2 * terms + (3 * stage.gathering.heads if back else 0))
            returned = edges * NUMBER * (stage.gathering.heads + (2 * terms if back else 0))
            return Work(0.0, sent, returned)
        last = step.stage == len(self._stages) - 1
        times = 3.0 if last or step.kind is Kind.APPLY_VERTEX_BACK else 1.0
        widths = self._widths(step.stage)
        rows = self._rows * NUMBER
        read = sum(widths[name] for name in stage.program.inputs) * rows
        made = sum(widths[name] for name in stage.program.outputs if name != "loss") * rows
        forward = self._rows * self._products(stage.program)
        if last:
            return Work(times * forward, read, read)
        if step.kind is Kind.APPLY_VERTEX:
            return Work(forward, read, made)
        wanted = [name for name in stage.program.inputs if name not in stage.program.constants]
        return Work(times * forward, read + made, sum(widths[name] for name in wanted) * rows)

    def _products(self, program: Program) -> float:
        """Multiplications of a row's forward pass."""
        return float(sum(math.prod(self._shapes[op.weights[0]]) for op in program.ops if op.name == "linear"))

    def _widths(self, number: int) -> Mapping[str, int]:
        """Columns of every value of a stage."""
        stage = self._stages[number]
        widths = {"x": self._graph.features, "ids": 2, "targets": 2, "counts": 1, "gathered": self._graph.features}
        if stage.gathering is not None:
            widths["gathered"] = stage.gathering.width
            widths["carried"] = self._widths(number - 1).get("carry", 0)
        for op in stage.program.ops:
            if op.name == "linear" or op.name == "head_dot":
                widths[op.makes] = self._shapes[op.weights[0]][0]
            elif op.name == "head_mean":
                widths[op.makes] = widths[op.reads[0]] // int(dict(op.settings)["heads"])
            else:
                widths[op.makes] = widths[op.reads[0]]
        return widths


def _draw(interval: int, epoch: int, step: Step) -> float:
    """A number in [0, 1) that is the same whenever it is asked for."""
    text = f"{interval} {epoch} {step.kind} {step.stage}"
    value = 0
    for letter in text.encode():
        value = (value * 1_000_003 + letter) & 0xFFFFFFFF
    return (value * 2_654_435_761 & 0xFFFFFFFF) / 2**32


def gcn(graph: Graph, hidden: int, layers: int = 2) -> nn.Module:
    return build_model(ModelConfig(name="gcn", layers=layers, hidden=hidden), graph.features, graph.classes)


def on_gpus(machine: Machine) -> Machine:
    """A server with a GPU of its own (V100 class): memory and products many times as fast, the same link."""
    return replace(machine, gather=300e9, multiply=5e12)
