"""What an epoch consists of: one step over the full graph, or a step for each minibatch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import BYTE_CLASSES
from weft.graph.typedrows import Rows
from weft.sample import LinkSource, MacrobatchLoader, Minibatch, VertexSource, enter
from weft.sample.source import Pairs
from weft.training.targets import RowLoss


class Step(Protocol):
    weight: float  # its share in the epoch's loss

    def loss(self) -> Tensor:
        """Goes forward; returns this worker's share of the loss."""
        ...


class Steps(Protocol):
    @property
    def loader(self) -> MacrobatchLoader | None:
        """Where minibatches come from; None: steps are over the full graph."""
        ...

    def epoch(self, epoch: int) -> Iterator[Step]: ...

    def planned_bytes(self) -> dict[str, int]:
        """Bytes of drawing and fetching this epoch's minibatches, by class: the run's communicator counts others."""
        ...

    def close(self) -> None: ...


@dataclass
class FullGraph:
    """Every epoch is one step over the whole graph."""

    graph: DistributedGraph
    model: nn.Module
    x: Rows
    loss_of: RowLoss
    loader: MacrobatchLoader | None = None

    def epoch(self, epoch: int) -> Iterator[Step]:
        yield _WholePass(self, epoch)

    def planned_bytes(self) -> dict[str, int]:
        return dict.fromkeys(BYTE_CLASSES, 0)

    def close(self) -> None: ...


@dataclass
class _WholePass:
    steps: FullGraph
    epoch: int
    weight: float = 1.0

    def loss(self) -> Tensor:
        steps = self.steps
        with steps.graph.training_pass(self.epoch) as view:
            return steps.loss_of(steps.model(view, steps.x))


class MinibatchSteps(ABC):
    """Steps over minibatches, one after another."""

    def __init__(self, graph: DistributedGraph, model: nn.Module, loader: MacrobatchLoader) -> None:
        self.graph, self.model, self.loader = graph, model, loader
        self._sent_before = dict(loader.sent)

    @abstractmethod
    def sizes(self, epoch: int) -> Tensor:
        """What this worker's share of each minibatch counts, float64 [steps]."""

    @abstractmethod
    def share(self, out: Tensor, minibatch: Minibatch, divisor: Tensor) -> Tensor:
        """This worker's share of a minibatch's loss, from the model's outputs for its seeds."""

    def epoch(self, epoch: int) -> Iterator[Step]:
        self._sent_before = dict(self.loader.sent)
        divisors = self.sizes(epoch)
        self.graph.comm.all_reduce(divisors, "control", "sizes of minibatches")
        weights = (divisors / divisors.sum()).tolist()
        divisors = divisors.clamp(min=1e-300)  # of a minibatch without anything, whose loss is 0
        for minibatch in self.loader.epoch(epoch):
            yield _MinibatchPass(self, minibatch, divisors[minibatch.step], weights[minibatch.step])

    def planned_bytes(self) -> dict[str, int]:
        return {kind: count - self._sent_before[kind] for kind, count in self.loader.sent.items()}

    def close(self) -> None:
        self.loader.close()


class VertexSteps(MinibatchSteps):
    """Minibatches of vertices whose labels are learned."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        loader: MacrobatchLoader,
        source: VertexSource,
        y: Tensor,
        loss_of: RowLoss,
    ) -> None:
        """`y`: what the loss compares outputs for own vertices with."""
        super().__init__(graph, model, loader)
        self._source, self._y, self._loss_of = source, y, loss_of

    def sizes(self, epoch: int) -> Tensor:
        return torch.stack([self._loss_of.weigh(self._y[rows]) for rows in self._source.epoch(epoch)])

    def share(self, out: Tensor, minibatch: Minibatch, divisor: Tensor) -> Tensor:
        rows = self._source.epoch(minibatch.epoch)[minibatch.step]
        return self._loss_of.share(out, self._y[rows], divisor)


class LinkSteps(MinibatchSteps):
    """Minibatches of pairs of vertices, of which it is learned whether they are edges."""

    def __init__(
        self,
        graph: DistributedGraph,
        model: nn.Module,
        loader: MacrobatchLoader,
        source: LinkSource,
        loss: Callable[[Tensor, Tensor, Pairs, Tensor], Tensor],
    ) -> None:
        """`loss`: from the rows of heads and tails of pairs, these pairs, and what their loss is divided by."""
        super().__init__(graph, model, loader)
        self._source, self._loss = source, loss

    def sizes(self, epoch: int) -> Tensor:
        return self._source.sizes(epoch).double()

    def share(self, out: Tensor, minibatch: Minibatch, divisor: Tensor) -> Tensor:
        drawn, batch = self._source.draw(minibatch.epoch, minibatch.step), minibatch.batch
        one, other = (out[batch.places(ends, drawn.times)] for ends in (drawn.heads, drawn.tails))
        return self._loss(one, other, drawn, divisor)

    def planned_bytes(self) -> dict[str, int]:
        more = self._source.sent()
        return {kind: count + more.get(kind, 0) for kind, count in super().planned_bytes().items()}


@dataclass
class _MinibatchPass:
    steps: MinibatchSteps
    minibatch: Minibatch
    divisor: Tensor
    weight: float

    def loss(self) -> Tensor:
        steps, minibatch = self.steps, self.minibatch
        inputs = minibatch.inputs()
        enter(steps.graph, minibatch.batch, inputs)
        with steps.graph.training_pass(minibatch.epoch, minibatch.step + 1) as view:
            out = steps.model(view, inputs.x)
        return steps.share(out, minibatch, self.divisor)
