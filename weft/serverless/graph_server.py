"""A graph server: runs graph tasks itself, submits tensor tasks, and continues intervals as responses arrive.

Everything happens in the caller's thread, one event after another; other threads only put events into a queue. An
interval has one step at a time: a graph task, which runs here, or a tensor task, which is with the dispatcher until its
response arrives.
"""

import queue
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from weft.comm import Communicator
from weft.errors import WorkerLost
from weft.serverless.autotuner import Autotuner
from weft.serverless.dispatch import Attempt, Dispatcher, Waste
from weft.serverless.edge_tasks import EdgeTasks
from weft.serverless.graph_tasks import GraphTasks
from weft.serverless.interval_state import IntervalState
from weft.serverless.intervals import Intervals
from weft.serverless.ledger import Ledger
from weft.serverless.pipeline import Pipeline, Step
from weft.serverless.propagation import Propagation
from weft.serverless.schedule import Schedule
from weft.serverless.server_links import ServerLinks
from weft.serverless.stages import Stage
from weft.serverless.stash import WeightStash
from weft.serverless.vertex_inputs import Constant
from weft.serverless.weight_server import WeightServer
from weft_function.handler import LOSS
from weft_function.program import Program
from weft_function.task import (
    TENSOR_KINDS,
    VERTEX_KINDS,
    Mode,
    Request,
    Response,
    TaskId,
    TaskKind,
    gradient_name,
)
from weft_function.wire import Message

Event = Attempt | Message | WorkerLost
AUTOTUNE_SECONDS = 0.25  # between two observations of the queue of tasks
_CARRIED = {"carry": "carried"}  # what a stage outputs and the next one reads under another name
_CARRY = {name: output for output, name in _CARRIED.items()}


@dataclass
class Seconds:
    """Where a server's time has gone so far."""

    graph: float = 0.0  # in graph tasks
    wait: float = 0.0  # for events


@dataclass
class GraphServer:
    """One server's part of a run whose tensor tasks are computed by functions."""

    comm: Communicator
    run: str
    seed: int
    stages: Sequence[Stage]
    intervals: Intervals
    schedule: Schedule
    propagations: Mapping[int, Propagation]
    pipeline: Pipeline
    constants: Mapping[str, Constant]  # inputs of vertex programs
    events: "queue.SimpleQueue[Event]"  # of the links' thread and of the dispatcher
    links: ServerLinks
    ledger: Ledger
    weights: WeightServer
    dispatcher: Dispatcher
    autotuner: Autotuner | None = None
    seconds: Seconds = field(default_factory=Seconds)

    def __post_init__(self) -> None:
        self._graph_tasks = GraphTasks(self.comm.worker, self.intervals, self.propagations, self.pipeline, self.links)
        self._edge_tasks = EdgeTasks(self.intervals, self.propagations)
        self._stash = WeightStash(self.weights.current(), self.weights.epoch)
        self._states = [IntervalState() for _ in range(len(self.intervals))]
        self._finished: dict[int, dict[int, IntervalState]] = {}  # by epoch and interval
        self._queued_graph_tasks: deque[tuple[int, int, Step]] = deque()
        self._next_autotuning = 0.0

    def train_until(self, epoch: int) -> None:
        """Works until the weights contain this epoch's update."""
        while self.weights.epoch < epoch:
            if not self._apply_update():
                self._work()

    @property
    def waste(self) -> Waste:
        """Work whose result was not used, so far."""
        return replace(self.dispatcher.waste)

    def state(self, epoch: int) -> dict[str, Tensor]:
        """For a checkpoint: the rows of this epoch, whose update the weights contain, that the next epoch can read."""
        return {} if self.schedule.staleness is None else self._graph_tasks.state(epoch)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continues from `state` after the epoch before the schedule's first."""
        self._graph_tasks.restore(state, self.schedule.first_epoch - 1)

    # -- events -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Starts all steps that can run, and then handles the events that have arrived, or runs one graph task."""
        started = self.pipeline.ready()
        for interval, epoch, step in started:
            if step.kind in TENSOR_KINDS:
                self._submit(interval, epoch, step)
            else:
                self._queued_graph_tasks.append((interval, epoch, step))
        self._autotune()
        handled = self._handle_events(wait=not started and not self._queued_graph_tasks)
        if not handled and self._queued_graph_tasks:
            interval, epoch, step = self._queued_graph_tasks.popleft()
            begin = time.perf_counter()
            self._graph_tasks.run(self._states[interval], interval, epoch, step)
            self._finish_step(interval, epoch)
            self.seconds.graph += time.perf_counter() - begin

    def _handle_events(self, wait: bool) -> bool:
        """Handles all events that have arrived; with `wait`, waits for the first one. Returns whether there was any."""
        handled = False
        begin = time.perf_counter()
        next_tick = self.dispatcher.seconds_to_tick()
        limit = self.comm.deadline_seconds
        while True:
            try:
                if handled or not wait:
                    event = self.events.get_nowait()
                else:
                    event = self.events.get(timeout=limit if next_tick is None else min(limit, next_tick))
            except queue.Empty:
                break
            if not handled:
                self.seconds.wait += time.perf_counter() - begin
            handled = True
            self._handle(event)
        if wait and not handled and next_tick is None:
            raise WorkerLost(
                f"worker {self.comm.worker} heard nothing for {limit:.0f} s in {self.comm.step}: another server or "
                "all functions are gone"
            )
        self.dispatcher.tick()
        return handled

    def _handle(self, event: Event) -> None:
        if isinstance(event, Attempt):
            self.dispatcher.finish_attempt(event)
        elif isinstance(event, WorkerLost):
            raise event
        elif event.kind == "rows":
            self._graph_tasks.receive(event)
        else:
            self.weights.receive(event)

    def _autotune(self) -> None:
        now = time.monotonic()
        if self.autotuner is not None and now >= self._next_autotuning:
            self._next_autotuning = now + AUTOTUNE_SECONDS
            self.dispatcher.scale(self.autotuner.observe(self.dispatcher.num_queued, self.dispatcher.num_running))

    def _apply_update(self) -> bool:
        if not self.weights.advance():
            return False
        epoch = self.weights.epoch
        self.schedule.record_loss(epoch, self.weights.losses[epoch])
        self._stash.add(epoch, self.weights.current())
        self.pipeline.record_update(epoch)
        self.ledger.close_epoch(epoch)
        return True

    # -- tensor tasks -------------------------------------------------------------------------------------------------

    def _submit(self, interval: int, epoch: int, step: Step) -> None:
        if step == self.pipeline.steps[0]:
            self._states[interval] = IntervalState(self._stash.acquire())
        state, stage = self._states[interval], self.stages[step.stage]
        if step.kind in VERTEX_KINDS:
            program, (mode, tensors) = stage.program, self._vertex_task(state, interval, step)
            constants = stage.dropout_keys(self.seed, epoch)
        else:
            (program, tensors), constants = self._edge_task(state, interval, epoch, step), {}
            mode = "forward" if step.kind is TaskKind.APPLY_EDGE else "both"
        task = TaskId(self.run, epoch, self.comm.worker, interval, step.stage, step.kind)
        stashed = self._stash.get(state.version)
        weights = {name: stashed[name] for name in program.weights}
        self.ledger.begin(task)
        request = Request(task, mode, program, state.version, weights, tensors, constants)
        self.dispatcher.submit(request, lambda response: self._on_response(task, step, response))

    def _vertex_task(self, state: IntervalState, interval: int, step: Step) -> tuple[Mode, dict[str, np.ndarray]]:
        if step.kind is TaskKind.APPLY_VERTEX_BACK:
            tensors = state.inputs.pop(step.stage)
            grads = {gradient_name(_CARRY.get(name, name)): grad for name, grad in state.outputs.items()}
            return "backward", tensors | grads
        rows = self.intervals.rows(interval)
        tensors = {
            name: state.outputs[name] if name in state.outputs else self.constants[name][rows]
            for name in self.stages[step.stage].program.inputs
        }
        if self._is_last(step.stage):
            return "both", tensors
        state.inputs[step.stage] = tensors
        return "forward", tensors

    def _edge_task(
        self, state: IntervalState, interval: int, epoch: int, step: Step
    ) -> tuple[Program, dict[str, np.ndarray]]:
        self.pipeline.check_epochs(interval, step)
        if step.kind is TaskKind.APPLY_EDGE:
            return self._edge_tasks.forward(state, interval, epoch, step.stage)
        return self._edge_tasks.backward(interval, epoch, step.stage)

    def _is_last(self, stage: int) -> bool:
        return stage == len(self.stages) - 1

    def _on_response(self, task: TaskId, step: Step, response: Response) -> None:
        state, tensors = self._states[task.interval], response.tensors
        if step.kind in VERTEX_KINDS:
            self._store_vertex_outputs(state, step, tensors)
        else:
            state.outputs |= tensors
            if step.kind is TaskKind.APPLY_EDGE_BACK:
                self._store_edge_gradients(state, step.stage, tensors)
        self._finish_step(task.interval, task.epoch)

    def _store_vertex_outputs(self, state: IntervalState, step: Step, tensors: Mapping[str, np.ndarray]) -> None:
        program = self.stages[step.stage].program
        if LOSS in tensors:
            state.loss = float(tensors[LOSS])
        grads = _gradients_of(program.weights, tensors)
        if grads:
            state.vertex_gradients[step.stage] = grads
        if step.kind is TaskKind.APPLY_VERTEX and not self._is_last(step.stage):
            state.outputs = {_CARRIED.get(name, name): tensors[name] for name in program.outputs}
        else:
            state.outputs = _gradients_of(("gathered", "carried"), tensors)

    def _store_edge_gradients(self, state: IntervalState, stage: int, tensors: Mapping[str, np.ndarray]) -> None:
        gathering = self.propagations[stage].gathering
        assert gathering.edge is not None
        # Every edge is processed at both of its ends.
        grads = {name: grad / 2 for name, grad in _gradients_of(gathering.edge.weights, tensors).items()}
        if grads:
            state.edge_gradients[stage] = grads

    # -- the end of an epoch ------------------------------------------------------------------------------------------

    def _finish_step(self, interval: int, epoch: int) -> None:
        if not self.pipeline.finish(interval):
            return
        state = self._states[interval]
        self._stash.release(state.version)
        finished = self._finished.setdefault(epoch, {})
        finished[interval] = state
        if len(finished) == len(self.intervals):
            self._push_gradients(epoch, self._finished.pop(epoch))

    def _push_gradients(self, epoch: int, states: Mapping[int, IntervalState]) -> None:
        """Sends this server's gradients, summed in the order of intervals, to the weight servers."""
        total = {name: np.zeros_like(weight) for name, weight in self.weights.current().items()}
        in_order = [states[interval] for interval in range(len(self.intervals))]
        for state in in_order:
            by_stage = [state.edge_gradients[stage] for stage in sorted(state.edge_gradients, reverse=True)]
            by_stage += [state.vertex_gradients[stage] for stage in sorted(state.vertex_gradients)]
            for grads in by_stage:
                for name, grad in grads.items():
                    total[name] += grad
        self.weights.push_gradients(epoch, total, sum(state.loss for state in in_order))


def _gradients_of(names: Sequence[str], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients among the tensors of a response, by the name of what they are gradients of."""
    return {name: tensors[gradient_name(name)] for name in names if gradient_name(name) in tensors}
