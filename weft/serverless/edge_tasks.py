"""The inputs of edge functions: what APPLY_EDGE and its adjoint read of both ends of an interval's edges.

The adjoint runs over the edges into the interval and then over the edges out of it: each edge is processed at both of
its ends, which compute the gradients of their own rows.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.layers.separation import Gathering
from weft.serverless.edge_softmax import head_dots
from weft.serverless.interval_state import IntervalState
from weft.serverless.intervals import Intervals
from weft.serverless.propagation import EdgeSources, Propagation
from weft_function.program import Program
from weft_function.task import gradient_name

EdgeTask = tuple[Program, dict[str, np.ndarray]]


class BackwardColumns(NamedTuple):
    """The columns of rows that travel backward where edges have a function."""

    grads: Tensor  # of what was gathered
    targets: Tensor  # the terms of targets
    row_max: Tensor  # of the softmax, per head
    row_sum: Tensor
    mean: Tensor  # of the gradients of the row's attention, weighted by it, per head

    @classmethod
    def of(cls, gathering: Gathering, rows: Tensor) -> "BackwardColumns":
        heads = gathering.heads
        widths = [gathering.width, gathering.terms or gathering.width, heads, heads, heads]
        return cls(*torch.split(rows, widths, dim=1))

    def packed(self) -> Tensor:
        return torch.cat(list(self), 1)


class EdgeTasks:
    def __init__(self, intervals: Intervals, propagations: Mapping[int, Propagation]) -> None:
        self._intervals, self._propagations = intervals, propagations

    def forward(self, state: IntervalState, interval: int, epoch: int, stage: int) -> EdgeTask:
        propagation = self._propagations[stage]
        assert propagation.gathering.edge is not None
        rows = propagation.forward.gather.row_numbers(interval)
        source, target = _source_terms(propagation, interval, epoch).take(), state.targets[stage][rows]
        return propagation.gathering.edge, {"source": source.numpy(), "target": target.numpy()}

    def backward(self, interval: int, epoch: int, stage: int) -> EdgeTask:
        propagation = self._propagations[stage]
        assert propagation.gathering.edge_back is not None
        into, out = self._edges_into(propagation, interval, epoch), self._edges_out_of(propagation, interval, epoch)
        return propagation.gathering.edge_back, {name: torch.cat([into[name], out[name]]).numpy() for name in into}

    def _edges_into(self, propagation: Propagation, interval: int, epoch: int) -> dict[str, Tensor]:
        """From the gradients of the interval's own rows, and the rows of its in-neighbours."""
        gathering, own = propagation.gathering, self._intervals.rows(interval)
        rows = propagation.forward.gather.row_numbers(interval)
        columns = BackwardColumns.of(gathering, propagation.backward.rows.at(epoch)[own])
        values = propagation.forward.sources(interval, epoch).narrow(0, gathering.width)
        return {
            "source": _source_terms(propagation, interval, epoch).take(),
            "target": columns.targets[rows],
            "row_max": columns.row_max[rows],
            "row_sum": columns.row_sum[rows],
            _ATTENTION_GRAD: head_dots(columns.grads, rows, values, gathering.heads) - columns.mean[rows],
        }

    def _edges_out_of(self, propagation: Propagation, interval: int, epoch: int) -> dict[str, Tensor]:
        """From the interval's own rows, and the gradients of its out-neighbours."""
        gathering, own = propagation.gathering, self._intervals.rows(interval)
        rows = propagation.backward.gather.row_numbers(interval)
        sources = propagation.backward.sources(interval, epoch)
        columns = BackwardColumns.of(gathering, sources.take())
        values = propagation.forward.rows.at(epoch)[own]
        grads = sources.narrow(0, gathering.width)
        return {
            "source": values[:, gathering.width if gathering.terms else 0 :][rows],
            "target": columns.targets,
            "row_max": columns.row_max,
            "row_sum": columns.row_sum,
            _ATTENTION_GRAD: head_dots(values[:, : gathering.width], rows, grads, gathering.heads) - columns.mean,
        }


_ATTENTION_GRAD = gradient_name("attention")


def _source_terms(propagation: Propagation, interval: int, epoch: int) -> EdgeSources:
    """What the edge function reads of sources."""
    sources, gathering = propagation.forward.sources(interval, epoch), propagation.gathering
    return sources.narrow(gathering.width) if gathering.terms else sources
