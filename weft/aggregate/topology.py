"""What an aggregation works on: the rows that it reads, the edges between them, and their coefficients.

`Topology` is the protocol; `WholeShard`, `RestrictedLevel`, `RowGathering`, `CachedLevel` and, for minibatches,
`weft.sample.level.SampledLevel` implement it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.rounds import Round, Schedule
from weft.comm import Communicator
from weft.partitioning import Shard

Reduce = str  # a name of register_reducer: sum, mean, max, or your own
Weight = Literal["edge", "symmetric"] | Tensor | None
By = Literal["relation"] | None


@dataclass(frozen=True)
class Edges:
    """One aggregation's edges with their coefficients: a block from each span of own rows, and from each round's."""

    own: tuple[Block, ...]
    rounds: tuple[Block, ...]

    @property
    def num_rows(self) -> int:
        return self.own[0].csr.num_rows

    def blocks(self) -> tuple[Block, ...]:
        return self.own + self.rounds

    def map(self, change: Callable[[Block], Block]) -> "Edges":
        """The same edges, each block of them changed."""
        return Edges(tuple(map(change, self.own)), tuple(map(change, self.rounds)))


@dataclass(frozen=True)
class MessageScale:
    """What turns sums over a row's edges into sums and means over all of its in-edges, where only some were drawn."""

    mean_counts: Tensor  # int64 [N], what a mean divides a row's sum by
    sum_scale: Tensor | None = None  # float64 [N], by what a sum is multiplied; None: by 1
    intervals: Tensor | None = (
        None  # float64 [N], of edges drawn by weight: one of weight w counts max(1, interval / w)
    )


class Topology(Protocol):
    """Which rows an aggregation reads, and along which edges.

    An aggregation takes rows x [num_in, D] to rows [num_out, D]. The first rows of both are the same vertices. Edges
    start in `spans` of x, and in rows of other workers, which arrive in `rounds`.
    """

    @property
    def shard(self) -> Shard:
        """The part of the graph that this worker owns."""
        ...

    @property
    def comm(self) -> Communicator: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def num_in(self) -> int: ...

    @property
    def num_out(self) -> int: ...

    @property
    def ids(self) -> Tensor:
        """Global ids of the rows, int64 [max(num_in, num_out)]."""
        ...

    @property
    def spans(self) -> tuple[slice, ...]:
        """Spans of own rows, one for each block of own edges; together they are all rows that go in."""
        ...

    @property
    def rounds(self) -> tuple[Round, ...]:
        """What arrives from other workers, one for each block of remote edges."""
        ...

    @property
    def plain(self) -> Edges:
        """The edges with all that they carry in the graph: weight, relation, features."""
        ...

    def mean_looped(self, dtype: torch.dtype) -> Edges:
        """The edges with all that they carry, and in the place of their loops one loop at every vertex, which carries
        the mean of what the vertex' other in-edges carry: for rows of `dtype`."""
        ...

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> Edges:
        """Edges with the coefficients of an aggregation of rows of `dtype`.

        `reduce` is sum, mean or max; "attend" adds a loop to every vertex, "attend_plain" does not, and neither has
        coefficients. By relation they have a row for every (vertex, relation).
        """
        ...

    @property
    def in_degrees(self) -> Tensor:
        """Number of in-edges of each row that comes out, over the whole graph, int64 [num_out]."""
        ...

    @property
    def message_scale(self) -> MessageScale: ...

    @property
    def of_minibatch(self) -> bool:
        """Whether the rows are those of a minibatch: others in every step, and far fewer come out than go in."""
        ...

    @property
    def counted(self) -> Tensor | None:
        """Which of its first rows this worker counts in statistics of all workers' rows (batch norm), bool.

        Every vertex is counted by one worker. None: each worker counts all of its rows.
        """
        ...

    def squared(self) -> "Topology":
        """The same edges with as many rows coming out as going in; the further ones have no in-edges."""
        ...

    @property
    def final_rows(self) -> tuple[int, ...]:
        """As `waiting.final_rows`."""
        ...

    @property
    def home_spans(self) -> tuple[tuple[slice, ...], ...]:
        """As `waiting.home_spans`."""
        ...

    @property
    def sent_spans(self) -> tuple[slice, ...]:
        """As `waiting.sent_spans`."""
        ...
