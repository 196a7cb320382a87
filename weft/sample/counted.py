"""On which worker a vertex of a minibatch counts where several compute it. It counts on one of them, so that statistics
over the rows of all workers are those of the minibatch, which has each vertex once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.sample.all_to_all import all_to_all_v
from weft.sample.book import PartitionBook

_BITS = torch.int64  # of a time, in which it travels beside a vertex


def counted_once(
    book: PartitionBook,
    comm: Communicator,
    nodes: Sequence[Tensor],
    sizes: Sequence[Sequence[int]],
    times: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Of each minibatch's vertices here, int32, which count here, bool; all workers together.

    The first sizes[m][k] of them are those that a layer computes, or reads. A vertex counts on the worker that has it
    from the smallest k on, the first of several: whichever layer has it, that worker does. With `times` it is
    moments that count once.
    """
    counts_of = torch.tensor([some.numel() for some in nodes])
    if comm.num_workers == 1:
        return [torch.ones_like(some, dtype=torch.bool) for some in nodes]
    every = torch.cat(list(nodes))
    since = torch.cat([_since(ends, some.numel()) for ends, some in zip(sizes, nodes, strict=True)])
    number = torch.arange(len(nodes)).repeat_interleave(counts_of)
    owners = book.owners(every)
    order = torch.argsort(owners, stable=True)
    counts = torch.bincount(owners * len(nodes) + number, minlength=comm.num_workers * len(nodes))
    counts = counts.view(comm.num_workers, len(nodes))
    asked = comm.all_gather(counts, "control", "numbers of vertices")[:, comm.worker]  # [W, K]
    sent, received = counts.sum(1).tolist(), asked.sum(1).tolist()
    facts = (
        [every, since] if times is None else [every.long(), since.long(), (torch.cat(list(times)) + 0.0).view(_BITS)]
    )
    told = all_to_all_v(comm, torch.stack(facts, 1)[order], sent, received, "ids", "vertices that count once")
    own = _first_of_all(told, asked, book.own)
    answers = all_to_all_v(comm, own.to(torch.uint8), received, sent, "topology", "where vertices count")
    counted = torch.empty(every.numel(), dtype=torch.bool)
    counted[order] = answers.bool()
    return list(torch.split(counted, counts_of.tolist()))


def _since(ends: Sequence[int], count: int) -> Tensor:
    """From which of the ends on each of the first `count` numbers is below it, int32."""
    return torch.searchsorted(torch.tensor(ends), torch.arange(count), right=True).int()


def _first_of_all(told: Tensor, asked: Tensor, own: range) -> Tensor:
    """Which of those that have an own vertex is the one where it counts, bool [S].

    told: [S, 2], a vertex and since when somebody has it, by worker and minibatch, and the bits of its time if it has
    one, [S, 3]; asked: int64 [W, K], how many.
    """
    workers, batches = asked.shape
    pair = torch.arange(workers * batches).repeat_interleave(asked.flatten())
    key = (pair % batches) * len(own) + (told[:, 0] - own.start)
    rank = told[:, 1].long() * workers + pair // batches
    if told.shape[1] > 2:
        _, time = torch.unique(told[:, 2], return_inverse=True)
        _, same = torch.unique(torch.stack([key, time], 1), dim=0, return_inverse=True)
    else:
        _, same = torch.unique(key, return_inverse=True)
    first = torch.full((same.numel(),), torch.iinfo(torch.int64).max)
    first.scatter_reduce_(0, same, rank, "amin")
    return first[same] == rank
