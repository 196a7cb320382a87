"""The in-edges of own vertices in the order of their times, so that what a moment sees of them is the first so many."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.csr import CSR, inverse_sqrt, row_numbers
from weft.kernels.hash import splitmix64
from weft.kernels.sampling import FirstEdges, InEdges
from weft.sample.moments import Moments, Sees


class History:
    """What a worker samples from around moments of its own vertices. Moments have rows here, not positions."""

    def __init__(self, csr: CSR, row_ids: Tensor, col_ids: Tensor, sees: Sees, graph_name: str) -> None:
        assert csr.time is not None and sees != "all"
        by_time = torch.argsort(csr.time, stable=True)
        ordered = csr.pick(by_time[torch.argsort(row_numbers(csr.indptr)[by_time], stable=True)], csr.indptr)
        assert ordered.time is not None
        self.csr, self._times, self._sees = replace(ordered, time=None), ordered.time, sees
        self._row_ids, self._graph_name = row_ids, graph_name
        weight = None if ordered.weight is None else ordered.weight.float().contiguous()
        self.edges = InEdges(self.csr.indptr, self.csr.indices, weight, row_ids, col_ids)

    def first_edges(self, moments: Moments) -> FirstEdges:
        """How many of a row's edges each moment sees, and what its draws are keyed by beside the vertex."""
        return FirstEdges(self.degrees(moments), splitmix64((moments.times + 0.0).view(torch.int64)))  # -0.0 is 0.0

    def degrees(self, moments: Moments) -> Tensor:
        """How many in-edges each moment sees, int32: a search among the times of its row."""
        rows = moments.nodes.long()
        start, low, high = self.csr.indptr[rows], self.csr.indptr[rows], self.csr.indptr[rows + 1]
        while bool((low < high).any()):
            middle = (low + high) // 2
            found = self._times[middle.clamp(max=max(self._times.numel() - 1, 0))]
            seen = found <= moments.times if self._sees == "until" else found < moments.times
            inside = low < high
            low = torch.where(inside & seen, middle + 1, low)
            high = torch.where(inside & ~seen, middle, high)
        return (low - start).int()

    def facts(self, rows: Tensor, degrees: Tensor, newest: int) -> dict[str, Tensor]:
        """What hops tell of rows that see so many edges. `newest`: only so many of these count; -1: all."""
        counting = degrees if newest < 0 else degrees.clamp(max=newest)
        sums = self.weight_sums(rows, degrees, counting)
        return {"degrees": counting} if sums is None else {"degrees": counting, "weight_sums": sums}

    def weight_sums(self, rows: Tensor, degrees: Tensor, newest: Tensor | None = None) -> Tensor | None:
        """Of each row's first `degrees` edges, or of the `newest` among these, float64; None: they have no weights."""
        if self._weight_before is None:
            return None
        start = self.csr.indptr[rows.long()]
        end = start + degrees
        return self._weight_before[end] - self._weight_before[start if newest is None else end - newest]

    def symmetric_scale(self, moments: Moments) -> Tensor:
        """1 / sqrt of what each moment sees and a loop, as GCN's coefficients want it, float64."""
        degrees = self.degrees(moments)
        sums = self.weight_sums(moments.nodes, degrees)
        return inverse_sqrt((degrees.double() if sums is None else sums) + 1.0, self._ids_of(moments), self._graph_name)

    def _ids_of(self, moments: Moments) -> Tensor:
        return self._row_ids[moments.nodes.long()]

    @cached_property
    def _weight_before(self) -> Tensor | None:
        """The weights of all edges before each one, float64 [E + 1]."""
        if self.csr.weight is None:
            return None
        sums = torch.zeros(self.csr.num_edges + 1, dtype=torch.float64)
        torch.cumsum(self.csr.weight.double(), 0, out=sums[1:])
        return sums


def refuse_weighted_loops(csr: CSR, graph_name: str) -> None:
    """A loop that is kept apart has one weight, whatever the time."""
    if csr.time is not None and csr.weight is not None:
        raise UserError(
            f"{graph_name} has edges with weights and times from vertices to themselves, and this model gives every "
            "vertex a loop whose weight knows no time: remove those edges"
        )
