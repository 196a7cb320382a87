"""Steps over the whole graph whose loss is of pairs of vertices, wherever these are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import BYTE_CLASSES, Communicator, build_route, exchange
from weft.graph.typedrows import Rows
from weft.sample import MacrobatchLoader, PartitionBook
from weft.training.steps import Step


class FarRows:
    """Takes rows of given vertices, of any worker, out of all workers' rows; differentiable."""

    def __init__(self, positions: Tensor, book: PartitionBook, comm: Communicator) -> None:
        """`positions` int32 [P], as the partition book has them. All workers make it together."""
        positions, own = positions.long(), book.own
        away = (positions < own.start) | (positions >= own.stop)
        wanted = torch.unique(positions[away])
        owners = book.owners(wanted)
        counts = torch.bincount(owners, minlength=comm.num_workers).tolist()
        self._comm, self._index = comm, positions - own.start
        self._index[away] = len(own) + torch.searchsorted(wanted, positions[away])
        self._index = self._index.to(comm.device)
        self._route = None
        if comm.num_workers > 1:
            self._route = build_route(comm, wanted - book.starts[owners], counts, len(own))

    def take(self, out: Tensor) -> Tensor:
        """[P, D] of this worker's rows [N, D]; all workers call it together."""
        if self._route is None:
            return out[self._index]
        return torch.cat([out, exchange(out, self._route, self._comm, what="rows of pairs")])[self._index]


@dataclass
class WholeGraphPairs:
    """Every epoch is one step over the whole graph, whose loss is of pairs."""

    graph: DistributedGraph
    model: nn.Module
    x: Rows
    share: Callable[[Tensor, int], Tensor]  # this worker's share of the loss, from the outputs for own vertices
    loader: MacrobatchLoader | None = None

    def epoch(self, epoch: int) -> Iterator[Step]:
        yield _WholePass(self, epoch)

    def planned_bytes(self) -> dict[str, int]:
        return dict.fromkeys(BYTE_CLASSES, 0)

    def close(self) -> None: ...


@dataclass
class _WholePass:
    steps: WholeGraphPairs
    epoch: int
    weight: float = 1.0

    def loss(self) -> Tensor:
        steps = self.steps
        with steps.graph.training_pass(self.epoch) as view:
            out = torch.cat([steps.model(view, steps.x)])  # complete: rows that still travel are waited for
            return steps.share(out, self.epoch)
