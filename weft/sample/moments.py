"""Moments: vertices at times. Where edges have times, these are what a minibatch has, since a vertex that is looked at
at two times has two neighbourhoods. A moment's in-neighbours are moments of the same time: no later edge is ever seen.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Sees = Literal["all", "until", "before"]  # which in-edges a moment has: any; not later ones; only earlier ones


class Moments(NamedTuple):
    """Some vertices at times; as positions, or as rows, as is said where they are."""

    nodes: Tensor  # int32 [M]
    times: Tensor  # float64 [M]

    def distinct(self) -> "Moments":
        """Each once, ascending by vertex and then by time."""
        codes, ranks, times = _coded([self])
        found = torch.unique(codes)
        nodes = found // ranks
        return Moments(nodes.int(), times[found - nodes * ranks])

    def find(self, wanted: "Moments") -> Tensor:
        """Where these are among the moments here, all of which differ, int64; each must be here."""
        codes, _, _ = _coded([self, wanted])
        count = self.nodes.numel()
        mine, order = codes[:count].sort()
        return order[torch.searchsorted(mine, codes[count:])]

    def numbered(self, ends: "Moments") -> tuple["Moments", Tensor]:
        """The moments here, all of which differ, and after them those of `ends` that are new; and the number that each
        of `ends` has among them, int32."""
        known = self.nodes.numel()
        codes, ranks, times = _coded([self, ends])
        distinct, place = torch.unique(codes, return_inverse=True)
        number = torch.full((distinct.numel(),), -1, dtype=torch.int64)
        number[place[:known]] = torch.arange(known)
        new = (number < 0).nonzero().squeeze(1)
        number[new] = torch.arange(known, known + new.numel())
        nodes = distinct[new] // ranks
        added = Moments(nodes.int(), times[distinct[new] - nodes * ranks])
        return join([self, added]), number[place[known:]].int()


def join(parts: Sequence[Moments]) -> Moments:
    return Moments(torch.cat([part.nodes for part in parts]), torch.cat([part.times for part in parts]))


def _coded(parts: Sequence[Moments]) -> tuple[Tensor, int, Tensor]:
    """One number of each moment, vertex * ranks + rank of its time; how many ranks there are, and their times."""
    whole = join(parts)
    times, rank = torch.unique(whole.times, return_inverse=True)
    ranks = max(1, times.numel())
    return whole.nodes.long() * ranks + rank, ranks, times
