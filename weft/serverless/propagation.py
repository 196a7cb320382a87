"""Propagation over the edges before a stage, forward and backward, with the rows of several epochs.

Stale rows are of the epoch before. Most of what they have changed by since then is common to all rows, since it comes
from the same update of the weights. So the mean change of rows that are never read stale is added to stale rows.
Without this correction the common part of all rows would follow the weights with a delay, and training would overshoot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.layers.separation import Gathering
from weft.partitioning import Shard
from weft.serverless.adjacency import GraphEdges
from weft.serverless.gather import Gather
from weft.serverless.intervals import Intervals
from weft.serverless.schedule import Schedule
from weft.serverless.stages import Stage


@dataclass(frozen=True)
class EdgeSources:
    """The rows at the sources of an interval's edges in one epoch."""

    rows: Tensor  # [M, D]
    columns: Tensor  # int32 [E], into rows
    stale: Tensor | None = None  # bool [E]; None: no row is stale
    correction: Tensor | None = None  # [D], added to stale rows

    def take(self, edges: slice = slice(None)) -> Tensor:
        """The sources of some edges, [E, D]."""
        taken = self.rows[self.columns[edges].long()]
        if self.stale is not None:
            assert self.correction is not None
            taken = taken + self.stale[edges, None] * self.correction
        return taken

    def narrow(self, start: int, stop: int | None = None) -> "EdgeSources":
        """Some of the columns of D."""
        correction = None if self.correction is None else self.correction[start:stop]
        return replace(self, rows=self.rows[:, start:stop], correction=correction)


class EpochRows:
    """A ring buffer with the rows of the latest epochs."""

    def __init__(self, epochs: int, columns: int, width: int, dtype: torch.dtype) -> None:
        assert epochs * columns < 1 << 31, "columns are int32"
        self._rows = torch.zeros(epochs, columns, width, dtype=dtype)

    def at(self, epoch: int) -> Tensor:
        """The rows of an epoch, [columns, width]; writable."""
        return self._rows[epoch % len(self._rows)]

    def all_epochs(self) -> Tensor:
        """[epochs * columns, width]"""
        return self._rows.flatten(0, 1)

    def start(self, epoch: int) -> int:
        """The first of an epoch's rows in `all_epochs`."""
        return epoch % len(self._rows) * self._rows.shape[1]


class _StaleEdges(NamedTuple):
    """The edges of an interval that read stale rows in epochs that are not exact."""

    edges: Tensor  # bool [E]
    weight: Tensor  # the sum of their coefficients in each row, [rows of the interval, 1]


@dataclass
class Direction:
    """Gathering in one direction, and the rows that are gathered."""

    gather: Gather
    rows: EpochRows
    schedule: Schedule
    num_corrected: int  # columns that depend on the weights; stale values of the others are not corrected
    _stale: dict[int, _StaleEdges | None] = field(default_factory=dict)  # by interval
    _corrections: dict[int, Tensor] = field(default_factory=dict)  # by epoch

    def sources(self, interval: int, epoch: int) -> EdgeSources:
        places = self.gather.places(interval)
        stale = None if self.schedule.is_exact(epoch) else self._stale_edges(interval)
        if stale is None:
            return EdgeSources(self.rows.at(epoch), places)
        starts = torch.tensor([self.rows.start(epoch), self.rows.start(epoch - 1)], dtype=torch.int32)
        columns = places + starts[stale.edges.long()]
        return EdgeSources(self.rows.all_epochs(), columns, stale.edges, self._correction(epoch))

    def sum(self, interval: int, epoch: int) -> Tensor:
        """The weighted sum over each row's edges, [rows of the interval, D]."""
        sources = self.sources(interval, epoch)
        total = self.gather.sum(interval, sources.rows, sources.columns)
        if sources.correction is not None:
            stale = self._stale_edges(interval)
            assert stale is not None
            total.addmm_(stale.weight, sources.correction[None])
        return total

    def reads_stale(self, interval: int) -> bool:
        return self._stale_edges(interval) is not None

    def _stale_edges(self, interval: int) -> _StaleEdges | None:
        if interval not in self._stale:
            edges = self.gather.stale_edges(interval, self.schedule)
            if edges is None:
                self._stale[interval] = None
            else:
                weight = self.gather.stale_weight(interval, edges).to(self.rows.all_epochs().dtype)
                self._stale[interval] = _StaleEdges(edges, weight)
        return self._stale[interval]

    def _correction(self, epoch: int) -> Tensor:
        """The mean change since the epoch before of own rows that are never read stale."""
        if epoch not in self._corrections:
            num_rows = self.gather.intervals.bounds[self.schedule.num_never_stale]
            now, before = (self.rows.at(one)[:num_rows] for one in (epoch, epoch - 1))
            correction = (now - before).sum(0) / max(1, int(num_rows))
            correction[self.num_corrected :] = 0
            self._corrections[epoch] = correction
            self._corrections.pop(epoch - self.schedule.kept_epochs, None)
        return self._corrections[epoch]


@dataclass(frozen=True)
class Propagation:
    """The gathering before a stage: rows forward, and gradients backward."""

    gathering: Gathering
    forward: Direction
    backward: Direction


def make_propagations(
    shard: Shard,
    comm: Communicator,
    intervals: Intervals,
    stages: Sequence[Stage],
    dtype: torch.dtype,
    schedule: Schedule,
) -> dict[int, Propagation]:
    """By stage. Stages that gather over equal edges share them. Collective."""
    graph_edges = GraphEdges(shard, comm)
    gathers: dict[tuple[str, Any], tuple[Gather, Gather]] = {}
    propagations = {}
    for number, stage in enumerate(stages):
        gathering = stage.gathering
        if gathering is None:
            continue
        key = (gathering.reduce, gathering.weight)
        if key not in gathers:
            adjacency = graph_edges.forward(gathering.reduce, gathering.weight, dtype)
            gathers[key] = Gather(intervals, adjacency), Gather(intervals, graph_edges.backward(adjacency))
        # Backward, only gradients depend on the weights of the epoch's update.
        widths = (gathering.forward_width, gathering.backward_width), (gathering.forward_width, gathering.width)
        forward, backward = (
            Direction(
                gather,
                EpochRows(schedule.kept_epochs, gather.adjacency.num_columns, width, dtype),
                schedule,
                num_corrected,
            )
            for gather, width, num_corrected in zip(gathers[key], *widths, strict=True)
        )
        propagations[number] = Propagation(gathering, forward, backward)
    return propagations
