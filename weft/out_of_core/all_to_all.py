"""All-to-all exchange of arrays of different lengths: each group of rows goes to the worker to which it belongs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from weft.comm import Communicator
from weft.graph.files import Array


@dataclass(frozen=True)
class Received:
    """What one worker sent to this one: arrays, sorted by group, and how much of each belongs to which group."""

    arrays: list[Array]
    counts: Array  # int64 [arrays, own groups]

    def of_groups(self) -> Iterator[tuple[int, list[Array]]]:
        """(own group, counted from 0; its piece of every array), where there is anything."""
        ends = np.cumsum(self.counts, axis=1)
        for group in range(self.counts.shape[1]):
            if self.counts[:, group].any():
                spans = zip(self.arrays, ends[:, group] - self.counts[:, group], ends[:, group], strict=True)
                yield group, [array[begin:end] for array, begin, end in spans]


@dataclass(frozen=True)
class AllToAll:
    """`groups[w]` are the groups of worker w; they follow each other in the order of the workers."""

    comm: Communicator
    groups: Sequence[range]

    def send(self, arrays: Sequence[Array], counts: Array, kind: str, what: str) -> list[Received]:
        """What every worker sent to this one, in their order.

        arrays: rows [n, ...], sorted by group. counts: int64 [arrays, groups], how many rows belong to each group.
        """
        comm = self.comm
        shared = comm.all_gather(torch.from_numpy(np.ascontiguousarray(counts)), kind, f"sizes of {what}").numpy()
        mine = self.groups[comm.worker]
        received = [Received([], sent[:, mine.start : mine.stop]) for sent in shared]
        pending = []
        for number, array in enumerate(arrays):
            ends = [0, *accumulate(counts[number].tolist())]
            outgoing: list[torch.Tensor | None] = []
            incoming: list[torch.Tensor | None] = []
            for peer, groups in enumerate(self.groups):
                leaving = array[ends[groups.start] : ends[groups.stop]]
                if peer == comm.worker:
                    received[peer].arrays.append(leaving)
                    outgoing.append(None)
                    incoming.append(None)
                    continue
                place = np.empty((int(received[peer].counts[number].sum()), *array.shape[1:]), array.dtype)
                received[peer].arrays.append(place)
                outgoing.append(torch.from_numpy(leaving))
                incoming.append(torch.from_numpy(place))
            pending.append(comm.post(outgoing, incoming, kind, what))
        for sending in pending:
            sending.wait()
        return received
