"""A graph server: gathers and scatters, has functions do the rest, and goes on as answers come.

Everything happens in the caller's thread, one event after another; other threads only put events where it looks. An
interval has one step under way at a time: a graph task, which is done here and now, or a tensor task, which is with the
dispatcher until its answer lands.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.errors import WorkerLost
from weft.serverless.dispatch import Dispatcher, Landed, Tuner, Waste
from weft.serverless.edges import Normaliser, head_dots, normaliser, weighted_sum, weights_of
from weft.serverless.fabric import Fabric
from weft.serverless.graphside import Gather, Intervals
from weft.serverless.ledger import Ledger, Stash
from weft.serverless.pipeline import Bound, Pipeline, Spot, Step, epoch_steps
from weft.serverless.programs import Gathering, compile_stages, dropout_keys
from weft.serverless.weights import Weights
from weft.train.loss import GlobalLoss
from weft_function.program import Program
from weft_function.request import TENSOR_KINDS, Answer, Kind, Mode, Request, TaskId
from weft_function.wire import Message

Arrays = Mapping[str, np.ndarray]
LOOK_SECONDS = 0.25  # between two looks at the queue of tasks


@dataclass
class Flight:
    """What an interval holds while it goes through one epoch."""

    version: int = 0
    inputs: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by stage, for the way back
    outputs: dict[str, np.ndarray] = field(default_factory=dict)  # of the last tensor task
    gathered: dict[int, Tensor] = field(default_factory=dict)  # by stage, where edges have a function
    normalisers: dict[int, Normaliser] = field(default_factory=dict)
    targets: dict[int, Tensor] = field(default_factory=dict)  # what the edge function sees of own rows, by stage
    gradients: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # of weights, by stage
    loss: float = 0.0


@dataclass(frozen=True)
class Way:
    """The two ways over a gathering's edges, and the rows that they read."""

    gathering: Gathering
    forward: Gather
    backward: Gather
    sent: Tensor  # [columns forward, sent_width]
    returned: Tensor  # [columns backward, returned_width]


class Server:
    """One worker's share of a run whose tensor tasks are done by functions."""

    def __init__(
        self,
        view: GraphView,
        model: nn.Module,
        x: Tensor,
        loss_of: GlobalLoss,
        weights: Callable[[Callable[..., None], Ledger], Weights],
        make_dispatcher: Callable[[Callable[[object], None], Callable[[TaskId], bool]], Dispatcher],
        *,
        run: str,
        seed: int,
        intervals: int,
        bound: Bound,
        last_epoch: int,
        aggregates_input: bool = True,
        tuner: Tuner | None = None,
    ) -> None:
        comm = view.comm
        self._comm, self._run, self._seed, self._tuner = comm, run, seed, tuner
        self.stages = compile_stages(model, loss_of.multi_label, aggregates_input)
        self.intervals = Intervals(view.shard, comm, intervals)
        self._ways = self._find_ways(x.dtype)
        self._constant = self._constants(view, model, x, loss_of)
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._fabric = Fabric(comm, self._events.put)
        self.ledger = Ledger(bound.first_epoch - 1)
        self.weights = weights(self._tell_weights, self.ledger)
        self._stash = Stash(self.weights.current(), self.weights.epoch)
        self._dispatcher = make_dispatcher(self._events.put, self.ledger.finish)
        self.bound = bound
        edge_stages = [number for number, way in self._ways.items() if way.gathering.edge is not None]
        steps = epoch_steps(len(self.stages), edge_stages)
        forward, backward = ({getattr(way, side) for way in self._ways.values()} for side in ("forward", "backward"))
        self._pipeline = Pipeline(comm.worker, steps, bound, last_epoch, self._reads(forward), self._reads(backward))
        self._flights = [Flight() for _ in range(len(self.intervals))]
        self._finished: dict[int, dict[int, Flight]] = {}  # by epoch and interval
        self._graph_tasks: deque[tuple[int, int, Step]] = deque()
        self._look_at = 0.0
        self.seconds = {"graph": 0.0, "wait": 0.0}
        comm.barrier("graph servers are there")

    # -- setting up ---------------------------------------------------------------------------------------------------

    def _find_ways(self, dtype: torch.dtype) -> dict[int, Way]:
        sides: dict[tuple[str, Any], tuple[Gather, Gather]] = {}
        ways = {}
        for number, stage in enumerate(self.stages):
            how = stage.gathering
            if how is None:
                continue
            key = (how.reduce, how.weight)
            if key not in sides:
                forward = self.intervals.forward(how.reduce, how.weight, dtype)
                backward = self.intervals.backward(forward)
                sides[key] = Gather(self.intervals, forward), Gather(self.intervals, backward)
            there, back = sides[key]
            sent = torch.zeros(there.side.num_columns, how.sent_width, dtype=dtype)
            returned = torch.zeros(back.side.num_columns, how.returned_width, dtype=dtype)
            ways[number] = Way(how, there, back, sent, returned)
        return ways

    def _constants(self, view: GraphView, model: nn.Module, x: Tensor, loss_of: GlobalLoss) -> dict[str, np.ndarray]:
        """What stages read that never changes: features, their aggregate, targets, what each counts, and ids."""
        found = {"x": x.detach(), "ids": view.global_ids}
        if "gathered" in self.stages[0].program.inputs:
            reduce, weight = model.layers[0].input_aggregate()  # type: ignore[index, union-attr]
            with torch.no_grad():
                found["gathered"] = view.aggregate(x, reduce, weight)
        targets = torch.full((len(x), *loss_of.y.shape[1:]), -1, dtype=torch.int64)
        targets[loss_of.rows] = loss_of.y.long()
        counts = (targets >= 0).double()
        if loss_of.weights is not None:
            chosen = targets.clamp(min=0)
            if loss_of.multi_label:
                counts = torch.where(targets == 1, loss_of.weights.double(), counts)
            else:
                counts = loss_of.weights.double()[chosen] * counts
        found |= {"targets": targets, "counts": (counts / loss_of.divisor).to(x.dtype)}
        return {name: tensor.contiguous().numpy() for name, tensor in found.items()}

    def _reads(self, gathers: Iterable[Gather]) -> list[set[Spot]]:
        """Of each interval, those whose rows any of these gathers for it."""
        return [
            set[Spot]().union(*(gather.reads(interval) for gather in gathers))
            for interval in range(len(self.intervals))
        ]

    # -- an epoch -----------------------------------------------------------------------------------------------------

    def until(self, epoch: int) -> None:
        """Works until the weights hold this epoch's update."""
        while self.weights.epoch < epoch:
            if self._take_update():
                continue
            begun = self._pipeline.ready(ahead=0) or self._pipeline.ready(self._idle())
            for interval, at, step in begun:
                if step.kind in TENSOR_KINDS:
                    self._submit(interval, at, step)
                else:
                    self._graph_tasks.append((interval, at, step))
            self._look_at_queue()
            if self._hear(wait=not begun and not self._graph_tasks):
                continue
            if self._graph_tasks:
                interval, at, step = self._graph_tasks.popleft()
                started = time.perf_counter()
                self._do(interval, at, step)
                self.seconds["graph"] += time.perf_counter() - started

    def _idle(self) -> int:
        """How many functions have nothing to do: so many intervals may go on with weights that lack an update."""
        return 0 if self._graph_tasks else self._dispatcher.idle

    def settle(self, epoch: int) -> None:
        """Nothing stale is read from this epoch on."""
        self.bound.exact_from = epoch

    @property
    def waste(self) -> Waste:
        """What was done in vain so far."""
        return replace(self._dispatcher.waste)

    def close(self) -> None:
        self._fabric.close()

    def _take_update(self) -> bool:
        if not self.weights.advance():
            return False
        self._stash.add(self.weights.epoch, self.weights.current())
        self._pipeline.updated(self.weights.epoch)
        self.ledger.close(self.weights.epoch)
        return True

    def _hear(self, wait: bool) -> bool:
        """Takes what has come, at least one event if it may wait; whether there was any."""
        heard = False
        started = time.perf_counter()
        patience = self._dispatcher.look_again_in()
        limit = self._comm.deadline_seconds
        while True:
            try:
                if heard or not wait:
                    event = self._events.get_nowait()
                else:
                    event = self._events.get(timeout=limit if patience is None else min(limit, patience))
            except queue.Empty:
                break
            if not heard:
                self.seconds["wait"] += time.perf_counter() - started
            heard = True
            if isinstance(event, Landed):
                self._dispatcher.landed(event)
            else:
                assert isinstance(event, Message)
                self._receive(event)
        if wait and not heard and patience is None:
            raise WorkerLost(
                f"worker {self._comm.worker} heard nothing for {limit:.0f} s in {self._comm.step}: another server or "
                "all functions are gone"
            )
        self._dispatcher.tick()
        return heard

    def _look_at_queue(self) -> None:
        """Now and then: as many functions as the queue asks for."""
        now = time.monotonic()
        if self._tuner is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._dispatcher.scale(self._tuner.look(self._dispatcher.queued, self._dispatcher.busy))

    # -- tensor tasks -------------------------------------------------------------------------------------------------

    def _submit(self, interval: int, epoch: int, step: Step) -> None:
        flight, stage = self._flights[interval], self.stages[step.stage]
        if step == self._pipeline.steps[0]:
            flight = self._flights[interval] = Flight(self._stash.hold())
        mode: Mode = "forward"
        if step.kind is Kind.APPLY_VERTEX:
            program, tensors = stage.program, self._vertex_inputs(flight, interval, step.stage)
            mode = "both" if step.stage == len(self.stages) - 1 else "forward"
        elif step.kind is Kind.APPLY_VERTEX_BACK:
            program, mode = stage.program, "backward"
            tensors = flight.inputs.pop(step.stage)
            tensors |= {f"d:{_MADE.get(name, name)}": grad for name, grad in flight.outputs.items()}
        elif step.kind is Kind.APPLY_EDGE:
            program, tensors = self._edge_task(flight, interval, step)
        else:
            (program, tensors), mode = self._edge_back_task(flight, interval, step), "both"
        task = TaskId(self._run, epoch, self._comm.worker, interval, step.stage, step.kind)
        weights = {name: self._stash.get(flight.version)[name] for name in program.weights}
        constants = dropout_keys(stage, self._seed, epoch) if step.kind in _OF_VERTICES else {}
        self.ledger.begin(task)
        request = Request(task, mode, program, flight.version, weights, tensors, constants)
        self._dispatcher.submit(request, lambda answer: self._answered(task, step, answer))

    def _vertex_inputs(self, flight: Flight, interval: int, number: int) -> dict[str, np.ndarray]:
        rows = self.intervals.rows(interval)
        tensors = dict(flight.outputs)
        for name in self.stages[number].program.inputs:
            if name not in tensors:
                tensors[name] = self._constant[name][rows]
        tensors = {name: tensors[name] for name in self.stages[number].program.inputs}
        if number < len(self.stages) - 1:
            flight.inputs[number] = tensors
        return tensors

    def _answered(self, task: TaskId, step: Step, answer: Answer) -> None:
        flight, stage = self._flights[task.interval], self.stages[step.stage]
        tensors = answer.tensors
        if step.kind in _OF_VERTICES:
            if "loss" in tensors:
                flight.loss = float(tensors["loss"])
            moved = [name for name in stage.program.weights if f"d:{name}" in tensors]
            if moved:
                flight.gradients[step.stage] = {name: tensors[f"d:{name}"] for name in moved}
            if step.kind is Kind.APPLY_VERTEX and step.stage < len(self.stages) - 1:
                flight.outputs = {_READ.get(name, name): tensors[name] for name in stage.program.outputs}
            else:
                inputs = [f"d:{name}" for name in ("gathered", "carried") if f"d:{name}" in tensors]
                flight.outputs = {name[2:]: tensors[name] for name in inputs}
        else:
            way = self._ways[step.stage]
            flight.outputs |= tensors
            if step.kind is Kind.APPLY_EDGE_BACK and way.gathering.edge is not None and way.gathering.edge.weights:
                # Every edge was seen from both of its ends.
                kept = flight.gradients.setdefault(-step.stage, {})
                kept |= {name: tensors[f"d:{name}"] / 2 for name in way.gathering.edge.weights}
        self._finish(task.interval, task.epoch)

    def _edge_task(self, flight: Flight, interval: int, step: Step) -> tuple[Program, dict[str, np.ndarray]]:
        way = self._ways[step.stage]
        assert way.gathering.edge is not None
        self._pipeline.check_ages(interval, step)
        rows, columns = way.forward.row_numbers(interval), way.forward.columns(interval)
        source, target = self._terms(way)[columns], flight.targets[step.stage][rows]
        return way.gathering.edge, {"source": source.numpy(), "target": target.numpy()}

    def _edge_back_task(self, flight: Flight, interval: int, step: Step) -> tuple[Program, dict[str, np.ndarray]]:
        """Edges into the interval, and after them edges out of it: the gradient that each adds to its two ends."""
        way, own = self._ways[step.stage], self.intervals.rows(interval)
        how = way.gathering
        assert how.edge_back is not None
        self._pipeline.check_ages(interval, step)
        # into the interval: its rows' own gradients, and the rows that came
        rows, columns = way.forward.row_numbers(interval), way.forward.columns(interval)
        grads, target, most, total, mean = self._returned(way, way.returned[own])
        into = {
            "source": self._terms(way)[columns],
            "target": target[rows],
            "most": most[rows],
            "total": total[rows],
            "d:share": head_dots(grads, rows, way.sent[:, : how.width], columns, how.heads) - mean[rows],
        }
        # out of it: gradients that came, and its own rows
        rows, columns = way.backward.row_numbers(interval), way.backward.columns(interval)
        grads, target, most, total, mean = self._returned(way, way.returned)
        values = way.sent[own, : how.width]
        out = {
            "source": self._terms(way)[own][rows],
            "target": target[columns],
            "most": most[columns],
            "total": total[columns],
            "d:share": head_dots(values, rows, grads, columns, how.heads) - mean[columns],
        }
        return how.edge_back, {name: torch.cat([into[name], out[name]]).numpy() for name in into}

    @staticmethod
    def _terms(way: Way) -> Tensor:
        """What the edge function sees of sources."""
        how = way.gathering
        return way.sent[:, how.width :] if how.terms else way.sent

    @staticmethod
    def _returned(way: Way, rows: Tensor) -> tuple[Tensor, ...]:
        """Gradients, the targets' terms, and each head's most, total and mean gradient."""
        how = way.gathering
        widths = [how.width, how.terms or how.width, how.heads, how.heads, how.heads]
        return torch.split(rows, widths, dim=1)

    # -- graph tasks --------------------------------------------------------------------------------------------------

    def _do(self, interval: int, epoch: int, step: Step) -> None:
        flight = self._flights[interval]
        if step.kind is Kind.SCATTER:
            self._scatter(flight, interval, epoch, step)
        elif step.kind is Kind.GATHER:
            flight.outputs = self._gather(flight, interval, step)
        elif step.kind is Kind.SCATTER_BACK:
            self._scatter_back(flight, interval, epoch, step)
        else:
            assert step.kind is Kind.GATHER_BACK
            flight.outputs = self._gather_back(flight, interval, step)
        self._finish(interval, epoch)

    def _scatter(self, flight: Flight, interval: int, epoch: int, step: Step) -> None:
        """The interval's rows to all that read them."""
        number, own = step.stage + 1, self.intervals.rows(interval)
        way, outputs = self._ways[number], flight.outputs
        how = way.gathering
        sent = torch.from_numpy(np.array(outputs.pop("sent")))
        way.sent[own, : how.width] = sent
        if how.edge is not None:
            if how.terms:
                way.sent[own, how.width :] = torch.from_numpy(np.array(outputs.pop("source")))
                flight.targets[number] = torch.from_numpy(np.array(outputs.pop("target")))
            else:
                flight.targets[number] = sent
        self._publish(way.forward, way.sent, interval, epoch, step, "hidden_forward")

    def _gather(self, flight: Flight, interval: int, step: Step) -> dict[str, np.ndarray]:
        way = self._ways[step.stage]
        how, outputs = way.gathering, flight.outputs
        self._pipeline.check_ages(interval, step)
        kept = {name: outputs[name] for name in ("carried",) if name in outputs}
        if how.edge is None:
            return kept | {"gathered": way.forward.sum(interval, way.sent).numpy()}
        logits = torch.from_numpy(np.array(outputs["logits"]))
        rows, columns = way.forward.row_numbers(interval), way.forward.columns(interval)
        count = len(flight.targets[step.stage])
        by = flight.normalisers[step.stage] = normaliser(logits, rows, count)
        shares = weights_of(logits, rows, by)
        gathered = weighted_sum(shares, rows, way.sent[:, : how.width], columns, count)
        flight.gathered[step.stage] = gathered
        return kept | {"gathered": gathered.numpy()}

    def _scatter_back(self, flight: Flight, interval: int, epoch: int, step: Step) -> None:
        """The gradients of what the interval gathered to all that it was gathered from."""
        way, own = self._ways[step.stage], self.intervals.rows(interval)
        how, outputs = way.gathering, flight.outputs
        grads = torch.from_numpy(np.array(outputs.pop("gathered")))
        if how.edge is None:
            way.returned[own] = grads
        else:
            gathered = flight.gathered.pop(step.stage)
            by, heads = flight.normalisers.pop(step.stage), how.heads
            mean = (gathered * grads).view(len(grads), heads, how.width // heads).sum(2)
            way.returned[own] = torch.cat([grads, flight.targets.pop(step.stage), by.most, by.total, mean], 1)
        self._publish(way.backward, way.returned, interval, epoch, step, "hidden_backward")

    def _gather_back(self, flight: Flight, interval: int, step: Step) -> dict[str, np.ndarray]:
        way, own = self._ways[step.stage], self.intervals.rows(interval)
        how, outputs = way.gathering, flight.outputs
        self._pipeline.check_ages(interval, step)
        kept = {name: outputs[name] for name in ("carried",) if name in outputs}
        if how.edge is None:
            return kept | {"sent": way.backward.sum(interval, way.returned).numpy()}
        count, edges_in = own.stop - own.start, len(way.forward.columns(interval))
        rows_in, rows_out = way.forward.row_numbers(interval), way.backward.row_numbers(interval)
        shares = torch.from_numpy(np.array(outputs["share"][edges_in:]))
        grads = way.returned[:, : how.width]
        d_sent = weighted_sum(shares, rows_out, grads, way.backward.columns(interval), count)
        d_source, d_target = (torch.zeros(count, how.terms or how.width, dtype=d_sent.dtype) for _ in range(2))
        d_source.index_add_(0, rows_out, torch.from_numpy(np.array(outputs["d:source"][edges_in:])))
        d_target.index_add_(0, rows_in, torch.from_numpy(np.array(outputs["d:target"][:edges_in])))
        if how.terms:
            return kept | {"sent": d_sent.numpy(), "source": d_source.numpy(), "target": d_target.numpy()}
        return kept | {"sent": (d_sent + d_source + d_target).numpy()}

    def _publish(self, gather: Gather, rows: Tensor, interval: int, epoch: int, step: Step, kind: str) -> None:
        """Sends an interval's rows to other servers that read them, and tells all that read them that they are new."""
        me = Spot(self._comm.worker, interval)
        self._pipeline.wrote(step.kind, step.stage, me, epoch)
        for piece in gather.pieces(interval):
            fields = {"what": "rows", "step": [step.kind, step.stage], "spot": list(me), "epoch": epoch,
                      "at": [piece.at.start, piece.at.stop]}  # fmt: skip
            self._fabric.tell(piece.server, fields, {"rows": rows[piece.rows].numpy()}, kind)

    def _finish(self, interval: int, epoch: int) -> None:
        if not self._pipeline.finish(interval):
            return
        flight = self._flights[interval]
        self._stash.let_go(flight.version)
        done = self._finished.setdefault(epoch, {})
        done[interval] = flight
        if len(done) == len(self.intervals):
            self._give(epoch, self._finished.pop(epoch))

    def _give(self, epoch: int, flights: dict[int, Flight]) -> None:
        """This server's gradients, summed in the order of intervals."""
        total = {name: np.zeros_like(weight) for name, weight in self.weights.current().items()}
        for interval in range(len(self.intervals)):
            for stage in sorted(flights[interval].gradients):
                for name, grad in flights[interval].gradients[stage].items():
                    total[name] += grad
        self.weights.give(epoch, total, sum(flights[interval].loss for interval in range(len(self.intervals))))

    # -- between servers ----------------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        fields = message.fields
        if fields["what"] != "rows":
            self.weights.hear(
                fields["what"], fields["epoch"], fields["server"], message.tensors, float(fields["number"])
            )
            return
        kind, stage = Kind(fields["step"][0]), int(fields["step"][1])
        forward = kind is Kind.SCATTER
        way = self._ways[stage + 1 if forward else stage]
        start, stop = fields["at"]
        into = way.sent if forward else way.returned
        into[start:stop] = torch.from_numpy(np.array(message.tensors["rows"]))
        self._pipeline.wrote(kind, stage, Spot(*fields["spot"]), fields["epoch"])

    def _tell_weights(self, server: int, what: str, epoch: int, arrays: Arrays, number: float) -> None:
        fields = {"what": what, "epoch": epoch, "server": self._comm.worker, "number": number}
        self._fabric.tell(server, fields, dict(arrays), "gradients")


_READ = {"carry": "carried"}  # what a stage carries over a gathering is read by the next under another name
_MADE = {read: made for made, read in _READ.items()}
_OF_VERTICES = (Kind.APPLY_VERTEX, Kind.APPLY_VERTEX_BACK)
