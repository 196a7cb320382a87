"""The graph tasks of a server: scatter and gather, forward and backward, and the exchange of rows for them."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from weft.serverless.edge_softmax import attention_of, softmax_state, weighted_sum
from weft.serverless.edge_tasks import BackwardColumns
from weft.serverless.interval_state import IntervalState
from weft.serverless.intervals import Intervals
from weft.serverless.pipeline import IntervalId, Pipeline, Step
from weft.serverless.propagation import Direction, Propagation
from weft.serverless.server_links import ServerLinks
from weft_function.task import TaskKind, gradient_name
from weft_function.wire import Message

Outputs = dict[str, np.ndarray]
_TRAFFIC = {TaskKind.SCATTER: "hidden_forward", TaskKind.SCATTER_BACK: "hidden_backward"}


class GraphTasks:
    """Reads and writes the states of intervals. Rows are sent to other servers when they are scattered."""

    def __init__(
        self,
        server: int,
        intervals: Intervals,
        propagations: Mapping[int, Propagation],
        pipeline: Pipeline,
        links: ServerLinks,
    ) -> None:
        self._server, self._intervals, self._propagations = server, intervals, propagations
        self._pipeline, self._links = pipeline, links

    def run(self, state: IntervalState, interval: int, epoch: int, step: Step) -> None:
        if step.kind is TaskKind.SCATTER:
            self._scatter(state, interval, epoch, step)
        elif step.kind is TaskKind.SCATTER_BACK:
            self._scatter_back(state, interval, epoch, step)
        else:
            self._pipeline.check_epochs(interval, step)
            carried = {name: state.outputs[name] for name in ("carried",) if name in state.outputs}
            gather = self._gather if step.kind is TaskKind.GATHER else self._gather_back
            state.outputs = carried | gather(state, interval, epoch, step.stage)

    # -- forward ------------------------------------------------------------------------------------------------------

    def _scatter(self, state: IntervalState, interval: int, epoch: int, step: Step) -> None:
        """Publishes the interval's rows to the intervals that read them."""
        stage, own = step.stage + 1, self._intervals.rows(interval)
        propagation, outputs = self._propagations[stage], state.outputs
        gathering = propagation.gathering
        sent = _tensor(outputs.pop("sent"))
        rows = propagation.forward.rows.at(epoch)
        rows[own, : gathering.width] = sent
        if gathering.edge is not None:
            if gathering.terms:
                rows[own, gathering.width :] = _tensor(outputs.pop("source"))
                state.targets[stage] = _tensor(outputs.pop("target"))
            else:
                state.targets[stage] = sent
        self._publish(propagation.forward, interval, epoch, step)

    def _gather(self, state: IntervalState, interval: int, epoch: int, stage: int) -> Outputs:
        propagation = self._propagations[stage]
        gathering = propagation.gathering
        if gathering.edge is None:
            return {"gathered": propagation.forward.sum(interval, epoch).numpy()}
        logits = _tensor(state.outputs["logits"])
        rows = propagation.forward.gather.row_numbers(interval)
        num_rows = len(state.targets[stage])
        softmax = state.softmax[stage] = softmax_state(logits, rows, num_rows)
        values = propagation.forward.sources(interval, epoch).narrow(0, gathering.width)
        gathered = weighted_sum(attention_of(logits, rows, softmax), rows, values, num_rows)
        state.gathered[stage] = gathered
        return {"gathered": gathered.numpy()}

    # -- backward -----------------------------------------------------------------------------------------------------

    def _scatter_back(self, state: IntervalState, interval: int, epoch: int, step: Step) -> None:
        """Publishes the gradients of what the interval gathered to the intervals from which it gathered."""
        stage, own = step.stage, self._intervals.rows(interval)
        propagation = self._propagations[stage]
        gathering = propagation.gathering
        rows = grads = _tensor(state.outputs.pop("gathered"))
        if gathering.edge is not None:
            gathered, softmax, heads = state.gathered.pop(stage), state.softmax.pop(stage), gathering.heads
            mean = (gathered * grads).view(len(grads), heads, gathering.width // heads).sum(2)
            rows = BackwardColumns(grads, state.targets.pop(stage), softmax.max, softmax.sum, mean).packed()
        propagation.backward.rows.at(epoch)[own] = rows
        self._publish(propagation.backward, interval, epoch, step)

    def _gather_back(self, state: IntervalState, interval: int, epoch: int, stage: int) -> Outputs:
        propagation, own, outputs = self._propagations[stage], self._intervals.rows(interval), state.outputs
        gathering = propagation.gathering
        if gathering.edge is None:
            return {"sent": propagation.backward.sum(interval, epoch).numpy()}
        num_rows = own.stop - own.start
        rows_in = propagation.forward.gather.row_numbers(interval)
        rows_out = propagation.backward.gather.row_numbers(interval)
        edges_in = len(rows_in)  # the edge task's outputs are of these edges first
        attention = _tensor(outputs["attention"][edges_in:])
        grads = propagation.backward.sources(interval, epoch).narrow(0, gathering.width)
        d_sent = weighted_sum(attention, rows_out, grads, num_rows)
        width = gathering.terms or gathering.width
        d_source, d_target = (torch.zeros(num_rows, width, dtype=d_sent.dtype) for _ in range(2))
        d_source.index_add_(0, rows_out, _tensor(outputs[gradient_name("source")][edges_in:]))
        d_target.index_add_(0, rows_in, _tensor(outputs[gradient_name("target")][:edges_in]))
        if gathering.terms:
            return {"sent": d_sent.numpy(), "source": d_source.numpy(), "target": d_target.numpy()}
        return {"sent": (d_sent + d_source + d_target).numpy()}

    # -- rows of other servers ----------------------------------------------------------------------------------------

    def _publish(self, direction: Direction, interval: int, epoch: int, step: Step) -> None:
        """Sends an interval's rows to the servers that read them, and records that they are written here."""
        interval_id = IntervalId(self._server, interval)
        rows = direction.rows.at(epoch)
        self._pipeline.record_write(step.kind, step.stage, interval_id, epoch)
        for outgoing in direction.gather.outgoing(interval):
            fields = {
                "step": [step.kind, step.stage],
                "interval": list(interval_id),
                "epoch": epoch,
                "places": [outgoing.places.start, outgoing.places.stop],
            }
            tensors = {"rows": rows[outgoing.rows].numpy()}
            self._links.send(outgoing.server, "rows", fields, tensors, _TRAFFIC[step.kind])

    def receive(self, message: Message) -> None:
        """Stores rows of another server."""
        fields = message.fields
        kind, stage = TaskKind(fields["step"][0]), int(fields["step"][1])
        if kind is TaskKind.SCATTER:
            direction = self._propagations[stage + 1].forward
        else:
            direction = self._propagations[stage].backward
        start, stop = fields["places"]
        direction.rows.at(fields["epoch"])[start:stop] = _tensor(message.tensors["rows"])
        self._pipeline.record_write(kind, stage, IntervalId(*fields["interval"]), fields["epoch"])

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self, epoch: int) -> dict[str, Tensor]:
        """The own rows of an epoch, which the next epoch can read."""
        own = slice(0, self._intervals.num_rows)
        found = {}
        for stage, propagation in self._propagations.items():
            found[f"sent.{stage}"] = propagation.forward.rows.at(epoch)[own]
            found[f"returned.{stage}"] = propagation.backward.rows.at(epoch)[own]
        return found

    def restore(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Sets the own rows of an epoch, and sends them to the other servers again."""
        own = slice(0, self._intervals.num_rows)
        for stage, propagation in self._propagations.items():
            propagation.forward.rows.at(epoch)[own] = state[f"sent.{stage}"]
            propagation.backward.rows.at(epoch)[own] = state[f"returned.{stage}"]
            for interval in range(len(self._intervals)):
                self._publish(propagation.forward, interval, epoch, Step(TaskKind.SCATTER, stage - 1))
                self._publish(propagation.backward, interval, epoch, Step(TaskKind.SCATTER_BACK, stage))


def _tensor(array: np.ndarray) -> Tensor:
    """A writable copy: arrays of responses and messages are read-only views."""
    return torch.from_numpy(np.array(array))
