"""Edges that a minibatch does not see because it learns them: they are left out of what is drawn around its seeds."""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from weft.sample.sampled import SampledEdges
from weft.sample.source import Recent, step_of


class LeftOut:
    """In-edges of own vertices by the minibatch that learns them, or their reverse. Every minibatch learns others."""

    def __init__(
        self, pairs: Tensor, keys: Tensor, weight: Tensor | None, num_columns: int, steps: int, seed: int
    ) -> None:
        """Of each edge row * num_columns + column, columns being own rows and then halo slots (int64), and what its
        step is drawn by; `weight` where edges have one."""
        self._pairs, self._keys, self._weight = pairs, keys, weight
        self._num_columns, self._steps, self._seed = num_columns, steps, seed
        self._epochs: Recent[tuple[Tensor, Tensor]] = Recent()

    def with_weight(self) -> "LeftOut":
        """Those that draws by weight know of: one of weight 0 is never drawn, and counts in no degree."""
        if self._weight is None:
            return self
        kept = self._weight != 0
        some = self._pairs[kept], self._keys[kept], self._weight[kept]
        return LeftOut(*some, self._num_columns, self._steps, self._seed)

    def of(self, epoch: int, step: int) -> "Unseen":
        """What a minibatch does not see."""
        order, ends = self._epochs.get(epoch, lambda: self._dealt(epoch))
        edges = order[int(ends[step]) : int(ends[step + 1])]
        edges = edges[torch.argsort(self._pairs[edges])]
        weight = torch.ones(edges.numel()) if self._weight is None else self._weight[edges]
        return Unseen(self._pairs[edges], weight.double(), self._num_columns)

    def _dealt(self, epoch: int) -> tuple[Tensor, Tensor]:
        step, order = step_of(self._keys, self._seed, epoch, self._steps).sort(stable=True)
        return order, torch.searchsorted(step, torch.arange(self._steps + 1))


class Unseen:
    """In-edges of own vertices that one minibatch does not see."""

    def __init__(self, pairs: Tensor, weight: Tensor, num_columns: int) -> None:
        """`pairs`: row * num_columns + column, ascending, int64."""
        self._pairs, self._num_columns = pairs, num_columns
        self._weights = torch.cat([weight.new_zeros(1), weight.cumsum(0)])

    def among(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Which of these edges it does not see, bool."""
        if not self._pairs.numel():
            return torch.zeros(rows.numel(), dtype=torch.bool)
        wanted = rows * self._num_columns + columns
        at = torch.searchsorted(self._pairs, wanted).clamp(max=self._pairs.numel() - 1)
        return self._pairs[at] == wanted

    def of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """How many in-edges each row lacks, int32, and their weights together, float64."""
        first = torch.searchsorted(self._pairs, rows * self._num_columns)
        end = torch.searchsorted(self._pairs, (rows + 1) * self._num_columns)
        return (end - first).int(), self._weights[end] - self._weights[first]


def without(drawn: SampledEdges, rows: Tensor, bounds: Tensor, unseen: list[Unseen]) -> SampledEdges:
    """What was drawn for `rows` but what minibatches do not see.

    The rows from bounds[m] on belong to minibatch m % len(unseen). Facts of rows tell how many edges each lacks, and
    sums of weights are without theirs.
    """
    counts, rows = drawn.indptr.diff(), rows.long()
    owner = torch.repeat_interleave(rows, counts)
    keep = torch.ones(owner.numel(), dtype=torch.bool)
    lacking, weights = torch.zeros(rows.numel(), dtype=torch.int32), torch.zeros(rows.numel(), dtype=torch.float64)
    for segment, (low, high) in enumerate(pairwise(bounds.tolist())):
        mine, edges = unseen[segment % len(unseen)], slice(int(drawn.indptr[low]), int(drawn.indptr[high]))
        keep[edges] = ~mine.among(owner[edges], drawn.sources[edges].long())
        lacking[low:high], weights[low:high] = mine.of_rows(rows[low:high])
    row = torch.repeat_interleave(torch.arange(rows.numel()), counts)[keep]
    left = torch.bincount(row, minlength=rows.numel())
    facts = drawn.facts | {"left_out": lacking}
    if "weight_sums" in facts:
        facts["weight_sums"] = facts["weight_sums"] - weights
    return replace(
        drawn,
        indptr=torch.cat([left.new_zeros(1), left.cumsum(0)]),
        sources=drawn.sources[keep],
        edge_data={name: data[keep] for name, data in drawn.edge_data.items()},
        facts=facts,
        edge_ids=None if drawn.edge_ids is None else drawn.edge_ids[keep],
    )
