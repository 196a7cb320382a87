"""Weights, each owned by one graph server: shares of gradients go to the owner, new values come from it.

An update belongs to an epoch and takes one share from every server, summed in the order of servers, so that the result
does not depend on who was first. Updates happen in the order of epochs, each on top of the one before at every owner.
A share that comes again is turned away by the ledger.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from weft.comm import Communicator
from weft.serverless.ledger import Ledger

Arrays = Mapping[str, np.ndarray]


def assign_owners(sizes: Mapping[str, int], servers: int) -> dict[str, int]:
    """Who owns which weight: the largest first, each to whoever has least."""
    load = [0] * servers
    owners = {}
    for name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        owners[name] = min(range(servers), key=lambda server: (load[server], server))
        load[owners[name]] += sizes[name]
    return owners


@dataclass
class _Update:
    """What has come for one epoch's update."""

    shares: dict[int, Arrays] = field(default_factory=dict)  # by server: gradients of weights owned here
    squares: dict[int, float] = field(default_factory=dict)  # by owner: of the norm
    values: dict[int, Arrays] = field(default_factory=dict)  # by owner: new weights
    losses: dict[int, float] = field(default_factory=dict)  # by server
    stepped: bool = False


Tell = Callable[[int, str, int, Arrays, float], None]  # server, what, epoch, arrays, number


class Weights:
    """One server's part in the updates. It hears messages, and says others through `tell`."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        comm: Communicator,
        tell: Tell,
        rate_of: Callable[[int], float],
        clip_norm: float | None,
        epoch: int,
        ledger: Ledger,
    ) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimiser, self._me, self._servers = optimiser, comm.worker, range(comm.num_workers)
        self._tell, self._rate_of, self._clip, self._ledger = tell, rate_of, clip_norm, ledger
        self.owners = assign_owners({name: p.numel() for name, p in self._parameters.items()}, comm.num_workers)
        self._updates: dict[int, _Update] = {}
        self.epoch = epoch  # whose update the weights hold
        self.norms: dict[int, float] = {}
        self.losses: dict[int, float] = {}

    def current(self) -> dict[str, np.ndarray]:
        return {name: p.detach().numpy() for name, p in self._parameters.items()}

    def give(self, epoch: int, gradients: Arrays, loss: float) -> None:
        """This server's share in an epoch's update, and in its loss."""
        for server in self._servers:
            part = {name: grad for name, grad in gradients.items() if self.owners[name] == server}
            self._say(server, "share", epoch, part, loss)

    def hear(self, what: str, epoch: int, sender: int, arrays: Arrays, number: float) -> None:
        """A message of an update."""
        if what == "share" and not self._ledger.apply(epoch, sender):
            return
        update = self._updates.setdefault(epoch, _Update())
        if what == "share":
            update.shares[sender], update.losses[sender] = arrays, number
        else:
            update.squares[sender] = number
            if what == "weights":
                update.values[sender] = arrays

    def advance(self) -> bool:
        """Does what can be done of the next update; whether the weights hold it now."""
        epoch = self.epoch + 1
        update = self._updates.get(epoch)
        if update is None:
            return False
        if not update.stepped and len(update.shares) == len(self._servers):
            self._step(epoch, update)
        if len(update.values) < len(self._servers) or len(update.losses) < len(self._servers):
            return False
        with torch.no_grad():
            for owner, values in update.values.items():
                if owner != self._me:
                    for name, value in values.items():
                        self._parameters[name].copy_(torch.from_numpy(np.array(value)))
        self.norms[epoch] = math.sqrt(sum(update.squares.values()))
        self.losses[epoch] = math.fsum(update.losses[server] for server in self._servers)
        del self._updates[epoch]
        self.epoch = epoch
        return True

    def _step(self, epoch: int, update: _Update) -> None:
        """The update of the weights owned here, once it is known how large all gradients together are."""
        own = [name for name, owner in self.owners.items() if owner == self._me]
        if self._me not in update.squares:
            square = 0.0
            for name in own:
                parameter = self._parameters[name]
                total = np.zeros(tuple(parameter.shape), parameter.detach().numpy().dtype)
                for server in self._servers:
                    total += update.shares[server][name]
                parameter.grad = torch.from_numpy(total)
                square += float(np.square(total, dtype=np.float64).sum())
            update.squares[self._me] = square
            if self._clip is not None:
                for server in self._servers:
                    if server != self._me:
                        self._tell(server, "square", epoch, {}, square)
        if self._clip is not None:
            if len(update.squares) < len(self._servers):
                return
            norm = math.sqrt(sum(update.squares[server] for server in self._servers))
            if norm > self._clip:
                for name in own:
                    grad = self._parameters[name].grad
                    assert grad is not None
                    grad *= self._clip / norm
        update.stepped = True
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate_of(epoch)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        update.values[self._me] = {}
        values = {name: self._parameters[name].detach().numpy().copy() for name in own}
        for server in self._servers:
            if server != self._me:
                self._tell(server, "weights", epoch, values, update.squares[self._me])

    def _say(self, server: int, what: str, epoch: int, arrays: Arrays, number: float) -> None:
        if server == self._me:
            self.hear(what, epoch, server, arrays, number)
        else:
            self._tell(server, what, epoch, arrays, number)


def share_optimiser_state(optimiser: torch.optim.Optimizer, weights: Weights, comm: Communicator) -> None:
    """Every server learns the optimiser's state of all weights, which their owners alone have: for a checkpoint."""
    for name, parameter in weights._parameters.items():
        owner = weights.owners[name]
        state = optimiser.state[parameter]
        _share(state, parameter, owner, comm)


def _share(state: dict[str, torch.Tensor], parameter: torch.Tensor, owner: int, comm: Communicator) -> None:
    names: Sequence[str] = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
    has = torch.tensor([name in state and isinstance(state[name], torch.Tensor) for name in names], dtype=torch.int64)
    comm.broadcast(has, owner, "control", "state of the optimiser")
    for name, there in zip(names, has.tolist(), strict=True):
        if there:
            like = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
            state[name] = comm.broadcast(state.get(name, like), owner, "control", "state of the optimiser")
