"""Rows that workers hand to each other, each its own number of them."""

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.kernels import memory


class Trade:
    """Rows on their way: of a tensor `leaving[q]`, one after another, go to worker q, and `arriving[q]` come back."""

    def __init__(
        self, comm: Communicator, rows: Tensor, leaving: list[int], arriving: list[int], kind: str, what: str
    ) -> None:
        parts: list[Tensor | None] = list(torch.split(rows.contiguous(), leaving))
        self._came = memory.empty((sum(arriving), *rows.shape[1:]), rows.dtype)
        places: list[Tensor | None] = list(torch.split(self._came, arriving))
        own, place = parts[comm.worker], places[comm.worker]
        assert own is not None and place is not None
        place.copy_(own)
        parts[comm.worker] = places[comm.worker] = None
        self._pending = comm.post(parts, places, kind, what)

    def finish(self) -> Tensor:
        """What came, in the order of workers; own rows among it."""
        self._pending.wait()
        return self._came
