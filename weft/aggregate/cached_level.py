"""The first layer of a minibatch where the aggregates of its input are known: it needs no edges."""

from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor

from weft.aggregate import waiting
from weft.aggregate.rounds import Round, Schedule
from weft.aggregate.topology import By, Edges, MessageScale, Topology, Weight
from weft.comm import Communicator
from weft.errors import UserError
from weft.partitioning import Shard

NOT_CACHED = (
    "the first layer wants something of its input's neighbours that the cache of aggregated input does not hold: set "
    "sample.cache_aggregates=never"
)


class CachedLevel:
    """Rows come out as they go in. Whoever asks for edges is refused with the reason."""

    of_minibatch = True
    final_rows = cached_property(waiting.final_rows)
    home_spans = cached_property(waiting.home_spans)
    sent_spans = cached_property(waiting.sent_spans)

    def __init__(self, base: Topology, ids: Tensor, counted: Tensor | None = None) -> None:
        self._base, self.ids, self.counted = base, ids, counted
        self.num_in = self.num_out = ids.numel()
        self.spans = (slice(0, self.num_in),)
        self.rounds: tuple[Round, ...] = ()

    @property
    def shard(self) -> Shard:
        return self._base.shard

    @property
    def comm(self) -> Communicator:
        return self._base.comm

    @property
    def schedule(self) -> Schedule:
        return self._base.schedule

    def edges(self, reduce: str, weight: Weight, dtype: torch.dtype, by: By = None) -> NoReturn:
        raise UserError(NOT_CACHED)

    @property
    def plain(self) -> Edges:
        raise UserError(NOT_CACHED)

    def mean_looped(self, dtype: torch.dtype) -> NoReturn:
        raise UserError(NOT_CACHED)

    @property
    def in_degrees(self) -> Tensor:
        raise UserError(NOT_CACHED)

    @property
    def message_scale(self) -> MessageScale:
        raise UserError(NOT_CACHED)

    def squared(self) -> "CachedLevel":
        return self
