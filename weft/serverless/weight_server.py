"""The weight server inside each graph server: it owns some of the weights and updates them.

All servers push their gradients of a weight to its owner, which sums them in the order of servers, so that the result
does not depend on the order of arrival. The owner sends the new value to all. Updates are made in the order of epochs.
The ledger rejects gradients that arrive twice.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from weft.comm import Communicator
from weft.serverless.ledger import Ledger
from weft.serverless.server_links import ServerLinks
from weft_function.wire import Message

Arrays = Mapping[str, np.ndarray]
_OPTIMISER_STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


def assign_owners(sizes: Mapping[str, int], servers: int) -> dict[str, int]:
    """The owner of each weight. The largest weights are assigned first, each to the server with the fewest numbers."""
    load = [0] * servers
    owners = {}
    for name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        owners[name] = min(range(servers), key=lambda server: (load[server], server))
        load[owners[name]] += sizes[name]
    return owners


@dataclass
class _Update:
    """What has arrived for the update of one epoch."""

    gradients: dict[int, Arrays] = field(default_factory=dict)  # by server: of the weights owned here
    squared_norms: dict[int, float] = field(default_factory=dict)  # by owner: of the summed gradients
    weights: dict[int, Arrays] = field(default_factory=dict)  # by owner: new values
    losses: dict[int, float] = field(default_factory=dict)  # by server
    stepped: bool = False  # whether the weights owned here are updated


class WeightServer:
    """One server's part in the updates."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        comm: Communicator,
        links: ServerLinks,
        learning_rate: Callable[[int], float],
        clip_norm: float | None,
        epoch: int,
        ledger: Ledger,
    ) -> None:
        """`learning_rate`: by epoch. `epoch`: whose update the weights already contain."""
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimiser, self._comm, self._servers = optimiser, comm, range(comm.num_workers)
        self._links, self._learning_rate, self._clip_norm, self._ledger = links, learning_rate, clip_norm, ledger
        self._owners = assign_owners({name: p.numel() for name, p in self._parameters.items()}, comm.num_workers)
        self._updates: dict[int, _Update] = {}
        self.epoch = epoch
        self.norms: dict[int, float] = {}  # of gradients, by epoch
        self.losses: dict[int, float] = {}  # by epoch

    def current(self) -> dict[str, np.ndarray]:
        return {name: p.detach().numpy() for name, p in self._parameters.items()}

    def push_gradients(self, epoch: int, gradients: Arrays, loss: float) -> None:
        """Sends this server's gradients of an epoch to the owners of the weights, and its loss to all servers."""
        for server in self._servers:
            part = {name: grad for name, grad in gradients.items() if self._owners[name] == server}
            if server == self._comm.worker:
                self._record("gradients", epoch, server, part, loss)
            else:
                self._send(server, "gradients", epoch, part, loss)

    def receive(self, message: Message) -> None:
        """Handles a message of another server's weight server."""
        fields = message.fields
        self._record(message.kind, fields["epoch"], fields["server"], message.tensors, float(fields["number"]))

    def _record(self, kind: str, epoch: int, sender: int, arrays: Arrays, number: float) -> None:
        """`number`: the sender's loss with "gradients", otherwise its squared norm."""
        if kind == "gradients" and not self._ledger.accept_gradients(epoch, sender):
            return
        update = self._updates.setdefault(epoch, _Update())
        if kind == "gradients":
            update.gradients[sender], update.losses[sender] = arrays, number
        else:
            update.squared_norms[sender] = number
            if kind == "weights":
                update.weights[sender] = arrays

    def advance(self) -> bool:
        """Continues the next update as far as possible; returns whether the weights contain it now."""
        epoch = self.epoch + 1
        update = self._updates.get(epoch)
        if update is None:
            return False
        if not update.stepped and len(update.gradients) == len(self._servers):
            self._step(epoch, update)
        if len(update.weights) < len(self._servers) or len(update.losses) < len(self._servers):
            return False
        with torch.no_grad():
            for owner, weights in update.weights.items():
                if owner != self._comm.worker:
                    for name, weight in weights.items():
                        self._parameters[name].copy_(torch.from_numpy(np.array(weight)))
        self.norms[epoch] = math.sqrt(sum(update.squared_norms.values()))
        self.losses[epoch] = math.fsum(update.losses[server] for server in self._servers)
        del self._updates[epoch]
        self.epoch = epoch
        return True

    def broadcast_optimiser_state(self) -> None:
        """Sends the optimiser's state of each weight from its owner to all servers, for a checkpoint. Collective."""
        for name, parameter in self._parameters.items():
            _broadcast_state(self._optimiser.state[parameter], parameter, self._owners[name], self._comm)

    def _step(self, epoch: int, update: _Update) -> None:
        """Updates the weights owned here, as soon as the norm of all gradients is known if they are to be clipped."""
        me = self._comm.worker
        owned = [name for name, owner in self._owners.items() if owner == me]
        if me not in update.squared_norms:
            update.squared_norms[me] = self._sum_gradients(owned, update)
            if self._clip_norm is not None:
                self._send_to_others("squared_norm", epoch, {}, update.squared_norms[me])
        if self._clip_norm is not None:
            if len(update.squared_norms) < len(self._servers):
                return
            norm = math.sqrt(sum(update.squared_norms[server] for server in self._servers))
            if norm > self._clip_norm:
                for name in owned:
                    grad = self._parameters[name].grad
                    assert grad is not None
                    grad *= self._clip_norm / norm
        update.stepped = True
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate(epoch)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        update.weights[me] = {}
        weights = {name: self._parameters[name].detach().numpy().copy() for name in owned}
        self._send_to_others("weights", epoch, weights, update.squared_norms[me])

    def _sum_gradients(self, owned: list[str], update: _Update) -> float:
        """Sets the gradients of the weights owned here, and returns the square of their norm."""
        squared_norm = 0.0
        for name in owned:
            parameter = self._parameters[name]
            total = np.zeros(tuple(parameter.shape), parameter.detach().numpy().dtype)
            for server in self._servers:
                total += update.gradients[server][name]
            parameter.grad = torch.from_numpy(total)
            squared_norm += float(np.square(total, dtype=np.float64).sum())
        return squared_norm

    def _send(self, server: int, kind: str, epoch: int, arrays: Arrays, number: float) -> None:
        fields = {"epoch": epoch, "server": self._comm.worker, "number": number}
        self._links.send(server, kind, fields, dict(arrays), "gradients")

    def _send_to_others(self, kind: str, epoch: int, arrays: Arrays, number: float) -> None:
        for server in self._servers:
            if server != self._comm.worker:
                self._send(server, kind, epoch, arrays, number)


def _broadcast_state(state: dict[str, torch.Tensor], parameter: torch.Tensor, owner: int, comm: Communicator) -> None:
    has = torch.tensor([isinstance(state.get(name), torch.Tensor) for name in _OPTIMISER_STATE], dtype=torch.int64)
    comm.broadcast(has, owner, "control", "state of the optimiser")
    for name, present in zip(_OPTIMISER_STATE, has.tolist(), strict=True):
        if present:
            like = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
            state[name] = comm.broadcast(state.get(name, like), owner, "control", "state of the optimiser")
