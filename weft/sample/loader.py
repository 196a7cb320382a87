"""The minibatches of every epoch, in order; the next macrobatch is drawn and fetched while this one is trained on."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from weft.comm import BYTE_CLASSES
from weft.sample.fetcher import Fetcher, Macrobatch
from weft.sample.minibatch import Minibatch
from weft.sample.store import Counts


class MacrobatchLoader:
    """Iterates over macrobatches, or over their minibatches, epoch by epoch. Every worker iterates alike."""

    def __init__(self, fetcher: Fetcher, macrobatch_size: int, last_epoch: int | None, overlap: bool) -> None:
        """`overlap`: the next macrobatch is prepared by a thread, which alone uses the fetcher's connections then.

        `last_epoch`: no epoch after it is prepared; None: none before it is asked for.
        """
        self.steps, self.macrobatch_size = fetcher.steps, macrobatch_size
        self.counts = Counts()  # of what has been handed out
        self.sent = dict.fromkeys(
            BYTE_CLASSES, 0
        )  # bytes of its drawing and fetching that the run's communicator does not count
        self._fetcher, self._last_epoch = fetcher, last_epoch
        self._pool = ThreadPoolExecutor(1, "weft-loader") if overlap else None
        self._ahead: tuple[tuple[int, int], Future[Macrobatch]] | None = None

    def described(self) -> dict[str, Any]:
        """For summaries: how many minibatches there are, and how they are prepared."""
        cached = self._fetcher.cached is not None
        return {"steps": self.steps, "macrobatch_size": self.macrobatch_size, "kept_aggregates": cached}

    def epoch(self, epoch: int) -> Iterator[Minibatch]:
        for macrobatch in self.macrobatches(epoch):
            for batch, rows in zip(macrobatch.batches, macrobatch.rows, strict=True):
                yield Minibatch(epoch, batch, rows, self._fetcher)

    def macrobatches(self, epoch: int) -> Iterator[Macrobatch]:
        for first in range(0, self.steps, self.macrobatch_size):
            macrobatch = self._next(epoch, first)
            self.counts.add(macrobatch.counts)
            if self._pool is not None:  # on connections of its own
                for kind, count in macrobatch.sent.items():
                    self.sent[kind] += count
            yield macrobatch

    def _next(self, epoch: int, first: int) -> Macrobatch:
        if self._pool is None:
            return self._fetch(epoch, first)
        wanted = epoch, first
        if self._ahead is None or self._ahead[0] != wanted:
            self._prepare(wanted)  # the pool's one thread ends first what nobody wants any more
        assert self._ahead is not None
        macrobatch = self._ahead[1].result()
        self._ahead = None
        if first + self.macrobatch_size < self.steps:
            self._prepare((epoch, first + self.macrobatch_size))
        elif self._last_epoch is not None and epoch < self._last_epoch:
            self._prepare((epoch + 1, 0))
        return macrobatch

    def _prepare(self, place: tuple[int, int]) -> None:
        """Begins to fetch a macrobatch. Every worker begins when it is handed out the one before: all alike."""
        assert self._pool is not None
        self._ahead = place, self._pool.submit(self._fetch, *place)

    def _fetch(self, epoch: int, first: int) -> Macrobatch:
        return self._fetcher.fetch(epoch, range(first, min(first + self.macrobatch_size, self.steps)))

    def close(self) -> None:
        """Returns when what is under way has ended: other workers take part in it, so it is not broken off."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
