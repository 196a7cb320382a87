"""What an epoch consists of: one step over the full graph, or a step for each minibatch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.aggregate import GraphView
from weft.comm import KINDS
from weft.sample import Batch, Links, Macro, Minibatches
from weft.train.loss import GlobalLoss


class Step(Protocol):
    weight: float  # its share in the epoch's loss

    def loss(self) -> Tensor:
        """Goes forward; returns this worker's share of the loss."""
        ...


class Steps(Protocol):
    @property
    def minibatches(self) -> Minibatches | None:
        """What steps are made of; None: the full graph."""
        ...

    def epoch(self, epoch: int) -> Iterator[Step]: ...

    def planned_bytes(self) -> dict[str, int]:
        """Bytes that this epoch's steps took to plan, by class, beside what the run's communicator counts."""
        ...

    def close(self) -> None: ...


@dataclass
class FullGraph:
    """Every epoch is one step over the whole graph."""

    view: GraphView
    model: nn.Module
    x: Tensor
    loss_of: GlobalLoss
    minibatches: Minibatches | None = None

    def epoch(self, epoch: int) -> Iterator[Step]:
        yield _WholePass(self, epoch)

    def planned_bytes(self) -> dict[str, int]:
        return dict.fromkeys(KINDS, 0)

    def close(self) -> None: ...


@dataclass
class _WholePass:
    steps: FullGraph
    epoch: int
    weight: float = 1.0

    def loss(self) -> Tensor:
        steps = self.steps
        steps.view.noise.begin(self.epoch)
        with steps.view.restricted():
            return steps.loss_of(steps.model(steps.view, steps.x))


class _Planned(ABC):
    """Steps over minibatches, one after another."""

    def __init__(self, view: GraphView, model: nn.Module, minibatches: Minibatches) -> None:
        self.view, self.model, self.minibatches = view, model, minibatches
        self._sent = dict.fromkeys(KINDS, 0)

    @property
    def own_start(self) -> int:
        return self.minibatches.planner.sampler.standing.own.start

    @abstractmethod
    def sizes(self, epoch: int) -> Tensor:
        """What this worker's share of each minibatch counts, float64 [steps]."""

    @abstractmethod
    def share(self, out: Tensor, epoch: int, batch: Batch, divisor: Tensor) -> Tensor:
        """This worker's share of a minibatch's loss, out of what the model says of its seeds."""

    def epoch(self, epoch: int) -> Iterator[Step]:
        self._sent = dict.fromkeys(KINDS, 0)
        divisors = self.sizes(epoch)
        self.view.comm.all_reduce(divisors, "control", "sizes of minibatches")
        weights = (divisors / divisors.sum()).tolist()
        divisors = divisors.clamp(min=1e-300)  # of a minibatch without anything, whose loss is 0
        for macro in self.minibatches.epoch(epoch):
            for kind, count in macro.sent.items():
                self._sent[kind] += count
            for number, batch in enumerate(macro.batches):
                yield _BatchPass(self, macro, number, divisors[batch.step], weights[batch.step])

    def planned_bytes(self) -> dict[str, int]:
        return self._sent

    def close(self) -> None:
        self.minibatches.close()


class Sampled(_Planned):
    """Minibatches of vertices whose classes are learned."""

    def __init__(
        self, view: GraphView, model: nn.Module, minibatches: Minibatches, y: Tensor, loss_of: GlobalLoss
    ) -> None:
        super().__init__(view, model, minibatches)
        self._y, self._loss_of = y, loss_of

    def _targets(self, seeds: Tensor) -> Tensor:
        return self._y[seeds.long() - self.own_start]

    def sizes(self, epoch: int) -> Tensor:
        source = self.minibatches.planner.source
        targets = (self._targets(source.nodes(epoch, step)) for step in range(source.steps))
        return torch.stack([self._loss_of.weigh(y) for y in targets])

    def share(self, out: Tensor, epoch: int, batch: Batch, divisor: Tensor) -> Tensor:
        return self._loss_of.share(out, self._targets(batch.seeds), divisor)


class LinkPasses(_Planned):
    """Minibatches of pairs of vertices, of which it is learned whether they are edges."""

    @property
    def _links(self) -> Links:
        source = self.minibatches.planner.source
        assert isinstance(source, Links)
        return source

    def sizes(self, epoch: int) -> Tensor:
        return self._links.sizes(epoch).double()

    def share(self, out: Tensor, epoch: int, batch: Batch, divisor: Tensor) -> Tensor:
        heads, tails, exist = self._links.pairs(epoch, batch.step)
        ends = (torch.searchsorted(batch.seeds, nodes) for nodes in (heads, tails))
        one, other = (out[rows] for rows in ends)
        scores = (one * other).sum(1) / out.shape[1] ** 0.5  # about 1 at the start, whatever the width
        total = functional.binary_cross_entropy_with_logits(scores, exist.to(scores.dtype), reduction="sum")
        return total / divisor.to(scores.dtype)


@dataclass
class _BatchPass:
    steps: _Planned
    macro: Macro
    number: int
    divisor: Tensor
    weight: float

    def loss(self) -> Tensor:
        steps, batch = self.steps, self.macro.batches[self.number]
        x = steps.minibatches.planner.enter(steps.view, self.macro, self.number)
        steps.view.noise.begin(self.macro.epoch, batch.step + 1)
        with steps.view.restricted():
            out = steps.model(steps.view, x)
        return steps.share(out, self.macro.epoch, batch, self.divisor)
